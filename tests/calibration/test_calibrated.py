"""An objective around an objective: what it adds, and that it is the inner one in all else."""

import copy
import math

import pytest
import torch
from torch import nn

from calibre import rng
from calibre.calibration.calibrated import Calibrated
from calibre.calibration.regularizers import Regularizers, calibration_terms
from calibre.errors import UserError
from calibre.experiment import read
from calibre.registry import OBJECTIVES
from calibre.settings import look_up
from calibre.ssl.objective import LabelledBatch, Objective, Pair
from tests.methods.helpers import equal
from tests.ssl.helpers import a_step, drawing


def inner(name="simclr", **settings):
    with rng.isolated(0, "test"):
        encoder = nn.Sequential(nn.Flatten(), nn.Linear(12, 6), nn.BatchNorm1d(6))
        kind = look_up("objective", name, OBJECTIVES)
        return kind(hidden=8, projection=4, **settings).build(encoder, 6)


def views(n=8):
    generator = rng.stream(0, "views")
    return [torch.randn(n, 3, 2, 2, generator=generator) for _ in range(2)]


@pytest.mark.parametrize("name", OBJECTIVES)
def test_its_parts_have_the_names_of_the_inner_objectives(name):
    settings = {"target_init": "local"} if name in ("byol", "moco", "smog") else {}
    plain, calibrated = inner(name, **settings), Calibrated(inner(name, **settings), Regularizers())
    assert list(calibrated.state_dict()) == list(plain.state_dict())
    assert equal(calibrated.state_dict(), plain.state_dict())
    assert (calibrated.shared, calibrated.kept) == (plain.shared, plain.kept)
    trained = [name for name, parameter in plain.named_parameters() if parameter.requires_grad]
    assert trained == [n for n, p in calibrated.named_parameters() if p.requires_grad]
    assert calibrated.get_submodule("encoder") is calibrated.inner.encoder


@pytest.mark.parametrize("name", OBJECTIVES)
def test_the_loss_is_the_inner_one_and_two_weighted_terms(name):
    settings = Regularizers(alpha_p=0.7, alpha_n=0.2, clusters=3)
    plain, calibrated = inner(name), Calibrated(inner(name), settings)
    for network in (plain, calibrated):
        network.begin_round(drawing(views()[0]))
    expected = plain(*views(), a_step(both=True))
    z_and_h = expected[1:5]
    terms = calibration_terms(settings, *z_and_h, rng.stream(0, "kmeans"))
    assert terms.l_p > 0
    assert terms.l_n > 0
    pair = calibrated(*views(), a_step())
    added = 0.7 * terms.l_p.item() + 0.2 * terms.l_n.item()
    assert pair.loss.item() == pytest.approx(expected.loss.item() + added, rel=1e-5)
    assert torch.equal(pair.terms["l_s"], expected.loss)
    for name in ("l_p", "l_n", "dropped", "agreement"):
        assert torch.equal(pair.terms[name], getattr(terms, name))
    assert torch.equal(pair.terms["clusters"], terms.clusters_valid)
    for got, wanted in zip(pair[1:5], z_and_h, strict=True):
        assert torch.equal(got, wanted)
    pair.loss.backward()
    assert calibrated.encoder[1].weight.grad.abs().sum() > 0


@pytest.mark.parametrize("name", OBJECTIVES)
def test_without_weights_it_is_the_inner_objective_bit_for_bit(name):
    """Gradients and everything that a step leaves behind, too."""
    settings = Regularizers(alpha_p=0, alpha_n=0, clusters=3)
    plain, calibrated = inner(name), Calibrated(inner(name), settings)
    gradients = []
    for network in (plain, calibrated):
        network.begin_round(drawing(views()[0]))
        step = a_step(both=True)
        pair = network(*views(), step)
        pair.loss.backward()
        network.before_step(step)
        network.after_step(step)
        gradients.append({n: p.grad for n, p in network.named_parameters() if p.grad is not None})
        gradients[-1]["loss"] = pair.loss.detach()
    assert equal(*gradients)
    assert equal(plain.state_dict(), calibrated.state_dict())


def test_true_labels_reach_the_terms_that_ask_for_them():
    calibrated = Calibrated(inner(), Regularizers(oracle_labels=True))
    labels = torch.tensor([0, 0, 1, 1, 2, 2, -1, -1])
    terms = calibrated(*views(), a_step(labels=labels)).terms
    assert terms["clusters"] == 3
    assert terms["dropped"] == pytest.approx(0.25)
    assert terms["agreement"] == pytest.approx(0.75)


class Direct(Objective):
    """Tensors of its own, outside any part; and it looks at its mode."""

    shared = ("encoder", "scale", "seen")

    def __init__(self):
        super().__init__()
        self.encoder = nn.Linear(4, 3)
        self.scale = nn.Parameter(torch.tensor(2.0))
        self.register_buffer("seen", torch.tensor(0.0))
        self.calls = []

    def begin_round(self, draw):
        self.calls.append(("begin", len(draw(5).rows)))

    def forward(self, a, b, step):
        self.seen = self.seen + 1  # a new tensor every time
        self.calls.append(("forward", self.training, step.both))
        z_a, z_b = self.encoder(a), self.encoder(b)
        return Pair((self.scale * z_a).square().mean(), z_a, z_b, z_a, z_b)

    def before_step(self, step):
        self.calls.append(("before", step.progress))

    def after_step(self, step):
        self.calls.append(("after", step.progress))


def test_tensors_outside_any_part_are_its_own_as_well():
    calibrated = Calibrated(Direct(), Regularizers(clusters=2))
    assert list(calibrated.state_dict()) == ["scale", "seen", "encoder.weight", "encoder.bias"]
    copied = copy.deepcopy(calibrated).double()
    points = rng.stream(0, "points")
    a, b = (torch.randn(6, 4, generator=points, dtype=torch.float64) for _ in range(2))
    pair = copied(a, b, a_step(6))
    assert pair.z_a.dtype == torch.float64
    pair.loss.backward()
    assert copied.scale.grad is not None
    assert copied.inner.scale is copied.scale
    assert copied.state_dict()["seen"] == 1
    assert calibrated.state_dict()["seen"] == 0  # the copy is one


def test_what_happens_around_a_step_happens_to_the_inner_objective():
    calibrated = Calibrated(Direct(), Regularizers(clusters=2))
    calibrated.begin_round(drawing(torch.zeros(9, 4)))
    step = a_step(6, progress=0.25)
    x = torch.randn(6, 4, generator=rng.stream(0, "points"))
    calibrated.eval()(x, x, step)
    calibrated.train()(x, x, step)
    calibrated.before_step(step)
    calibrated.after_step(step)
    assert calibrated.inner.calls == [
        ("begin", 5), ("forward", False, True), ("forward", True, True),
        ("before", 0.25), ("after", 0.25),
    ]  # fmt: skip


def test_encodings_that_are_not_finite_say_so():
    calibrated = Calibrated(Direct(), Regularizers())
    x = torch.full((6, 4), math.inf)
    with pytest.raises(FloatingPointError, match="training diverged"):
        calibrated(x, x, a_step(6))


@pytest.mark.parametrize("name", ["byol", "simsiam", "smog"])
def test_predictions_may_stand_in_place_of_projections(name):
    """L_p from the predictor's outputs, made of the network's parts; l_s stays as it is."""
    plain, settings = inner(name), Regularizers(clusters=2, h="prediction")
    a, b = views(16)
    pair = Calibrated(copy.deepcopy(plain), settings)(a, b, a_step(16))
    z = [plain.encoder(x) for x in (a, b)]
    p = [plain.predictor(plain.projector(x)) for x in z]
    terms = calibration_terms(settings, *z, *p, rng.stream(0, "kmeans"), a_step(16).labels)
    torch.testing.assert_close(pair.terms["l_p"], terms.l_p)
    torch.testing.assert_close(pair.terms["l_n"], terms.l_n)
    other = Calibrated(inner(name), settings.model_copy(update={"h": "projection"}))
    assert not torch.isclose(other(a, b, a_step(16)).terms["l_p"], terms.l_p)


def test_predictions_need_a_predictor():
    with pytest.raises(UserError, match=r"method.prototypes.h = 'prediction'.*'simclr' has no"):
        read(None, ["method.name=calibre", "method.prototypes.h=prediction"])


def groups_of_views(n=24, groups=3):
    """Two views of images in groups that lie far apart, and whose group each image is."""
    generator = rng.stream(0, "groups")
    group = torch.arange(n) % groups
    centre = 20 * torch.eye(12)[group].reshape(n, 3, 2, 2)
    a, b = (centre + torch.randn(n, 3, 2, 2, generator=generator) for _ in range(2))
    return a, b, group


def same_partition(labels, others):
    """Whether two images are together in one of them where they are in the other."""
    return torch.equal(labels[:, None] == labels, others[:, None] == others)


def test_clusters_of_a_whole_client_are_made_once_a_round():
    a, b, group = groups_of_views()
    calibrated = Calibrated(inner(), Regularizers(kmeans="client", clusters=3))
    calibrated.train()
    before = {name: tensor.clone() for name, tensor in calibrated.state_dict().items()}
    calibrated.begin_round(drawing(a))
    assert same_partition(calibrated.cluster_of, group)
    assert equal(before, calibrated.state_dict())  # batch norm has not followed
    assert calibrated.encoder.training
    rows = torch.tensor([5, 0, 7, 1, 6, 2])  # of one batch
    step = a_step(6)._replace(rows=rows)
    terms = calibrated(a[rows], b[rows], step).terms
    assert terms["agreement"] == 1
    assert terms["clusters"] == 3
    plain = inner()
    pair = plain(a[rows], b[rows], step)
    expected = calibration_terms(
        Regularizers(oracle_labels=True), *pair[1:5], rng.stream(0, "kmeans"), group[rows]
    )  # the same clusters under other numbers
    torch.testing.assert_close(terms["l_n"], expected.l_n)
    torch.testing.assert_close(terms["l_p"], expected.l_p)


def test_an_image_that_was_not_sorted_is_in_no_cluster():
    a, b, _ = groups_of_views()
    calibrated = Calibrated(inner(), Regularizers(kmeans="client", clusters=3))
    calibrated.begin_round(drawing(a[:12]))
    rows = torch.arange(6, 18)
    terms = calibrated(a[rows], b[rows], a_step(12)._replace(rows=rows)).terms
    assert terms["dropped"] == pytest.approx(0.5)


def test_prototypes_of_the_server_sort_the_images_and_the_clients_own_go_up():
    a, _, group = groups_of_views()
    calibrated = Calibrated(inner(), Regularizers(kmeans="server", clusters=3), features=6)
    assert "prototypes" in calibrated.shared
    calibrated.eval()
    z = calibrated.encoder(a).detach()
    means = torch.stack([z[group == k].mean(0) for k in range(3)])
    calibrated.begin_round(drawing(a))  # the server knows none yet
    assert same_partition(calibrated.cluster_of, group)
    sent = calibrated.prototypes.vectors.clone()
    assert torch.cdist(sent, means).min(0).values.max() < 1e-4
    calibrated.prototypes.vectors.copy_(torch.stack([means[2], means[0], means[0] + 1e4]))
    calibrated.begin_round(drawing(a))  # nobody is near the server's last one
    assert torch.equal(calibrated.cluster_of[group == 2], torch.zeros(8, dtype=torch.int64))
    assert torch.equal(calibrated.cluster_of[group == 0], torch.ones(8, dtype=torch.int64))
    assert equal({"sent": sent}, {"sent": calibrated.prototypes.vectors})


def test_a_client_with_few_images_sends_as_many_prototypes_as_others():
    calibrated = Calibrated(inner(), Regularizers(kmeans="server", clusters=5), features=6)
    a = views(2)[0]
    calibrated.begin_round(drawing(a))
    assert calibrated.prototypes.vectors.shape == (5, 6)
    assert len(calibrated.prototypes.vectors.unique(dim=0)) == 2


def test_clusters_anchored_by_labels_need_labels():
    a, b, group = groups_of_views()
    calibrated = Calibrated(inner(), Regularizers(kmeans="labels"))
    terms = calibrated(a, b, a_step(24)).terms
    assert (terms["l_n"], terms["l_p"], terms["clusters"]) == (0, 0, 0)
    held = torch.tensor([True] * 3)
    step = a_step(24)._replace(labelled=lambda count: LabelledBatch(a[:6], group[:6], held))
    terms = calibrated(a, b, step).terms
    assert terms["clusters"] == 3
    assert terms["agreement"] == 1
    assert terms["l_n"] > 0


def test_encodings_that_are_not_finite_say_so_as_a_round_begins():
    calibrated = Calibrated(Direct(), Regularizers(kmeans="client"))
    with pytest.raises(FloatingPointError, match="training diverged"):
        calibrated.begin_round(drawing(torch.full((6, 4), math.inf)))
