import pytest

from calibre.experiment import Experiment
from calibre.report.catalogue import SMALLEST
from calibre.report.metrics import ClientResult
from calibre.report.results import write_results
from calibre.run_folder import RunFolder

CLIENTS = [ClientResult(0, "", False, 5, 0, 5, 2, 0.5, {})]


def parts(network, *names):
    """Bytes of the named parts, counted tensor by tensor."""
    return sum(
        len(tensor.numpy().tobytes())
        for name, tensor in network.state_dict().items()
        if name.split(".")[0] in names
    )


@pytest.mark.parametrize(
    ("name", "up", "down"),
    [
        ("fedavg", ("encoder", "head"), ("encoder", "head")),
        ("fedrep", ("encoder",), ("encoder",)),
        ("lg-fedavg", ("head",), ("head",)),
        ("pfl-ssl", ("encoder", "projector"), ("encoder", "projector")),
        ("local", (), ()),
        ("untrained", (), ()),
    ],
)
def test_what_a_client_sends_and_receives_in_a_round_is_kept(name, up, down, tmp_path):
    experiment = Experiment(method={"name": name})
    network = experiment.method.build(SMALLEST)
    state = experiment.method.init(network)
    metrics = write_results(
        experiment, state, RunFolder(tmp_path), "f00d", CLIENTS, 0, [], 1.0,
        images=0, promise=None, choice=None,
    )  # fmt: skip
    assert metrics.bytes_up == parts(network, *up)
    assert metrics.bytes_down == parts(network, *down)
    assert (metrics.bytes_up > 0) == bool(up)


def test_a_method_may_send_more_than_a_model(tmp_path):
    experiment = Experiment(method={"name": "scaffold"})
    network = experiment.method.build(SMALLEST)
    state = experiment.method.init(network)
    metrics = write_results(
        experiment, state, RunFolder(tmp_path), "f00d", CLIENTS, 0, [], 1.0,
        images=0, promise=None, choice=None,
    )  # fmt: skip
    parameters = {*network.encoder.parameters(), *network.head.parameters()}
    trained = sum(4 * p.numel() for p in parameters)  # a control for each
    assert metrics.bytes_up == parts(network, "encoder", "head") + trained
