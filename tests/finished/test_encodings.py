import shutil
from dataclasses import replace

import numpy as np
import pytest
import safetensors.torch as st
import torch

from calibre.data import augment
from calibre.data.federation import load as load_federation
from calibre.data.parts import Parts
from calibre.data.sources import load
from calibre.engine import rounds
from calibre.errors import UserError
from calibre.finished import encodings
from calibre.finished.encodings import encode_clients
from calibre.finished.run import FinishedRun
from calibre.models.network import Problem, build_encoder
from calibre.report import runs


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """Runs by method, each made once: one shares its encoder, one keeps batch norm, one all."""
    from calibre.experiment import read
    from tests.conftest import TINY

    made = {}

    def run(name):
        if name not in made:
            folder = tmp_path_factory.mktemp(name)
            rounds.run(read(None, [f"method.name={name}", *TINY]), folder)
            made[name] = runs.read(folder)
        return made[name]

    return run


def naive(run, client, tensors):
    """A client's test images through an encoder with these tensors, one by one."""
    pool, federation = load(run.experiment.data), load_federation(run.folder)
    height, _, channels = pool.shape
    problem = Problem(height, channels, len(pool.classes), run.experiment.network, run.seed)
    encoder = build_encoder(problem).eval()
    own = {k.removeprefix("encoder."): t for k, t in tensors.items() if k.startswith("encoder.")}
    assert encoder.load_state_dict(own, strict=True)
    normal = augment.statistics(pool.images[pool.train.start : pool.train.stop])
    rows = federation.client(client).test
    with torch.no_grad():
        features = [
            encoder(augment.plain(torch.from_numpy(pool.images[[row]]), normal))[0] for row in rows
        ]
    return torch.stack(features), rows, pool.labels[rows]


def check(found, client, expected, rows, labels):
    own = found.clients == client
    # images of earlier clients are left out, so look for these among all
    nearest = torch.cdist(torch.from_numpy(found.features[own]), expected).min(dim=1)
    assert nearest.values.max() < 1e-4
    np.testing.assert_array_equal(found.classes[own], labels[nearest.indices.numpy()])
    assert own.sum() <= len(rows)


def test_a_shared_encoder_is_the_servers(finished):
    run = finished("fedavg")
    found = encode_clients(run, [0, 6])
    model = st.load_file(run.folder / "model.safetensors")
    assert set(found.clients) == {0, 6}
    assert found.label == "FedAvg"
    for client in (0, 6):
        check(found, client, *naive(run, client, model))
    first = found.clients == 0
    assert first.sum() == len(naive(run, 0, model)[1])  # the first has all of its images


def test_what_a_client_keeps_is_its_own(finished):
    run = finished("fedbn-ft")  # whose personal models hold heads alone
    trained = sorted({client for event in run.rounds for client in event.clients}, key=int)
    client = int(trained[0])
    model = st.load_file(run.folder / "model.safetensors")
    kept = sorted((run.folder / "clients" / f"{client:06d}").glob("[0-9]*.safetensors"))[-1]
    own = {**model, **st.load_file(kept)}
    check(encode_clients(run, [client]), client, *naive(run, client, own))


def test_a_personal_model_with_an_encoder_of_its_own_is_used(finished):
    run = finished("local")
    personal = [
        st.load_file(run.folder / "clients" / f"{client:06d}" / "personal.safetensors")
        for client in (0, 1)
    ]
    found = encode_clients(run, [0, 1])
    for client in (0, 1):
        check(found, client, *naive(run, client, personal[client]))
    assert not torch.equal(*(naive(run, 0, tensors)[0] for tensors in personal))


def test_an_image_of_several_clients_is_shown_once(finished):
    run = finished("fedavg")
    federation = load_federation(run.folder)
    found = encode_clients(run, range(7))
    held = [set(federation.client(c).test.tolist()) for c in range(7)]
    assert len(found.clients) == len(set().union(*held)) < sum(map(len, held))


def test_a_client_whose_images_are_all_shown_already_adds_none(finished, monkeypatch):
    run = finished("fedavg")
    federation = load_federation(run.folder)
    rows = [federation.client(client).test for client in (0, 0, *range(2, 7))]
    owners = np.repeat(np.arange(7), [len(part) for part in rows])
    twins = replace(federation, test=Parts.of(owners, np.concatenate(rows), 7))
    monkeypatch.setattr(FinishedRun, "federation", twins)
    assert set(encode_clients(run, [0, 1, 2]).clients) == {0, 2}


def test_many_images_are_thinned_out_evenly(finished, monkeypatch):
    monkeypatch.setattr(encodings, "MOST", 10)
    found = encode_clients(finished("fedavg"), [0, 1])
    assert np.bincount(found.clients).tolist() == [5, 5]


def test_the_first_clients_are_shown_where_none_are_chosen(finished):
    assert set(encode_clients(finished("fedavg")).clients) == set(range(6))


def test_a_client_that_is_not_there_is_named(finished):
    with pytest.raises(UserError, match="no client 7: this run has clients 0 to 6, novel from 5"):
        encode_clients(finished("fedavg"), [0, 7])


def test_what_does_not_belong_together_is_told(finished, tmp_path):
    run = finished("fedavg")
    copy = replace(run, folder=shutil.copytree(run.folder, tmp_path / "copy"))
    wider = copy.experiment.network.model_copy(update={"width": 3})
    other = replace(copy, experiment=copy.experiment.model_copy(update={"network": wider}))
    with pytest.raises(UserError, match=r"lacks the checkpoint .* of another experiment"):
        encode_clients(other, [0])
    personal = copy.folder / "clients" / "000000" / "personal.safetensors"
    personal.write_bytes(b"no")
    with pytest.raises(UserError, match=r"000000/personal.safetensors is missing or damaged"):
        encode_clients(copy, [0])
    personal.unlink()
    with pytest.raises(UserError, match=r"000000/personal.safetensors is missing or damaged"):
        encode_clients(copy, [0])
    data = copy.experiment.data.model_copy(update={"test_fraction": 0.3})
    other = replace(copy, experiment=copy.experiment.model_copy(update={"data": data}))
    with pytest.raises(UserError, match="have changed since"):
        encode_clients(other, [0])


def test_without_what_a_client_kept_it_is_not_drawn_as_one_that_never_trained(finished, tmp_path):
    run = finished("fedbn-ft")
    copy = replace(run, folder=shutil.copytree(run.folder, tmp_path / "copy"))
    client = min(run.rounds[-1].clients)
    (copy.folder / "clients" / f"{client:06d}" / "0003.safetensors").unlink()
    with pytest.raises(UserError, match=f"what client {client} kept after round 3 is missing"):
        encode_clients(copy, [client])
    with pytest.raises(UserError, match=f"what client {client} kept after round 3 is missing"):
        FinishedRun(copy).bundle(client)
