import math
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from calibre import rng
from calibre.errors import UserError
from calibre.experiment import read
from calibre.local.sgd import SGD, shuffled_batches, train
from calibre.sections import TrainingSettings


def site(round_=0, rounds=1):
    return SimpleNamespace(
        round=round_,
        training=TrainingSettings(rounds=rounds, clients_per_round=1, epochs=1),
        device=torch.device("cpu"),
        amp=False,
        generator=lambda purpose, *keys: rng.stream(0, purpose, round_, *keys),
    )


def test_plain_sgd_on_a_quadratic_follows_the_closed_form():
    w = torch.nn.Parameter(torch.tensor([4.0]))
    sgd = SGD(lr=0.1, momentum=0, weight_decay=0, batch=2, schedule="constant")
    train(
        site(), lambda batch: {"loss": (w**2).sum() / 2}, examples=6, epochs=2, sgd=sgd,
        parameters=[w],
    )  # fmt: skip
    assert w.item() == pytest.approx(4 * 0.9**6)  # 3 batches, twice


@pytest.mark.parametrize("kind", ["sgd", "adamw"])
def test_steps_are_those_of_torchs_own_optimizer_to_the_bit(kind):
    def parts():
        made = torch.Generator().manual_seed(0)
        return [torch.nn.Parameter(torch.randn(3, 4, generator=made)) for _ in range(3)]

    def cost(step, a, b, c):  # the second part has no gradient in the first and the third step
        return (a.sin() * c).sum() + (b.square().sum() if step % 2 else 0)

    mine, theirs = parts(), parts()
    if kind == "sgd":
        sgd = SGD(lr=0.1, momentum=0.9, weight_decay=0.01, batch=2, schedule="constant")
        optimizer = torch.optim.SGD(theirs, 0.1, momentum=0.9, weight_decay=0.01)
    else:
        sgd = SGD(
            kind="adamw", lr=0.01, momentum=0.8, beta2=0.95, weight_decay=0.1, batch=2,
            schedule="constant",
        )  # fmt: skip
        optimizer = torch.optim.AdamW(
            theirs, 0.01, betas=(0.8, 0.95), weight_decay=0.1, foreach=True
        )
    train(
        site(), lambda batch: {"loss": cost(batch.step, *mine)}, examples=10, epochs=1, sgd=sgd,
        parameters=mine,
    )  # fmt: skip
    for step in range(5):
        optimizer.zero_grad()
        cost(step, *theirs).backward()
        optimizer.step()
    assert all(torch.equal(a, b) for a, b in zip(mine, theirs, strict=True))
    assert not torch.equal(mine[1], parts()[1])


def test_adamw_of_one_step_follows_the_closed_form():
    """From nothing, mean and root of squares are the gradient's: a step is lr times its sign."""
    w = torch.nn.Parameter(torch.tensor([4.0, -2.0]))
    sgd = SGD(kind="adamw", lr=0.01, weight_decay=0.5, batch=2, schedule="constant")
    slope = torch.tensor([3.0, -0.1])
    train(
        site(), lambda batch: {"loss": (w * slope).sum()}, examples=2, epochs=1, sgd=sgd,
        parameters=[w],
    )  # fmt: skip
    expected = [4 * (1 - 0.01 * 0.5) - 0.01, -2 * (1 - 0.01 * 0.5) + 0.01]
    assert w.tolist() == pytest.approx(expected, abs=1e-6)


def test_adamw_takes_its_own_rate_unless_one_is_given():
    def of(*changes):
        return read(None, ["method.name=fedavg", *changes]).method.sgd

    plain, chosen = of(), of("method.sgd.kind=adamw")
    assert (plain.kind, plain.lr, plain.weight_decay) == ("sgd", 0.02, 1e-4)
    assert (chosen.lr, chosen.momentum, chosen.weight_decay) == (0.001, 0.9, 0.01)
    assert (chosen.batch, chosen.schedule) == (plain.batch, plain.schedule)
    assert of("method.sgd.kind=adamw", "method.sgd.lr=0.003").lr == 0.003
    with pytest.raises(UserError, match=r"method.sgd.lr = 0.05 with .*'adamw'.* 0.001 is usual"):
        of("method.sgd.kind=adamw", "method.sgd.lr=0.05")


@pytest.mark.parametrize(("name", "reads"), [("scaffold", "mean gradient"), ("qffl", "Lipschitz")])
def test_methods_of_plain_steps_refuse_adamw(name, reads):
    with pytest.raises(UserError, match=rf"method.sgd.kind = 'adamw'.*{reads}.*leave it 'sgd'"):
        read(None, [f"method.name={name}", "method.sgd.kind=adamw"])


@pytest.mark.parametrize("kind", ["sgd", "adamw"])
def test_training_does_not_load_torchs_compiler(kind):
    program = f"""if True:
        import sys
        import torch
        from tests.local.test_sgd import site
        from calibre.local.sgd import SGD, train
        w = torch.nn.Parameter(torch.zeros(1))
        loss = lambda batch: {{"loss": w.sum()}}
        sgd = SGD(kind="{kind}", lr=0.01, batch=2)
        train(site(), loss, examples=4, epochs=1, sgd=sgd, parameters=[w])
        assert w.item() < 0
        sys.exit("torch._dynamo" in sys.modules)
    """
    subprocess.run([sys.executable, "-c", program], check=True, cwd=Path(__file__).parents[2])


def test_gradients_can_be_changed_before_and_parameters_followed_after_each_step():
    w = torch.nn.Parameter(torch.zeros(1))
    seen = []
    train(
        site(), lambda batch: {"loss": w.sum()}, examples=4, epochs=1,
        sgd=SGD(lr=1, momentum=0, weight_decay=0, batch=2, schedule="constant"), parameters=[w],
        before_step=lambda batch: w.grad.mul_(3 + batch.step),
        after_step=lambda batch: seen.append((batch.step, w.item())),
    )  # fmt: skip
    assert seen == [(0, -3.0), (1, -7.0)]


def test_the_learning_rate_follows_the_global_epoch():
    sgd = SGD(lr=2.0, schedule="cosine")
    assert sgd.rate(0, 10) == 2.0
    assert sgd.rate(5, 10) == pytest.approx(1.0)
    assert sgd.rate(9, 10) == pytest.approx(1 + math.cos(math.pi * 0.9))
    w = torch.nn.Parameter(torch.zeros(1))
    sgd = SGD(lr=2.0, momentum=0, weight_decay=0, batch=2, schedule="cosine")
    train(
        site(round_=5, rounds=10), lambda batch: {"loss": w.sum()}, examples=2, epochs=1, sgd=sgd,
        parameters=[w],
    )  # fmt: skip
    assert w.item() == pytest.approx(-1.0)  # half way through the run


def test_a_warm_up_rises_evenly_and_then_the_schedule_begins():
    cosine = SGD(lr=2.0, schedule="cosine", warmup=4)
    assert [cosine.rate(e, 14) for e in range(5)] == pytest.approx([0.4, 0.8, 1.2, 1.6, 2.0])
    assert cosine.rate(9, 14) == pytest.approx(1.0)  # half of what is left
    constant = SGD(lr=2.0, schedule="constant", warmup=1)
    assert [constant.rate(e, 14) for e in range(4)] == [1, 2, 2, 2]
    assert cosine.rate(3, 2) == pytest.approx(1.6)  # a run that ends before it is warm


def test_the_report_is_the_mean_over_the_samples_of_the_last_epoch():
    w = torch.nn.Parameter(torch.zeros(1))
    report = train(
        site(), lambda batch: {"loss": 0 * w.sum(), "size": torch.tensor(float(len(batch.rows)))},
        examples=5, epochs=3, sgd=SGD(batch=2), parameters=[w],
    )  # fmt: skip
    assert report["size"] == pytest.approx((2 * 2 + 2 * 2 + 1 * 1) / 5)


def test_a_term_that_is_not_finite_stops_at_once_and_is_named():
    w = torch.nn.Parameter(torch.ones(1))
    steps = []

    def loss(batch):
        steps.append(batch.step)
        bad = torch.tensor(math.nan if batch.step == 1 else 0.0)
        return {"loss": w.sum(), "l_n": bad}

    with pytest.raises(FloatingPointError, match=r"l_n became nan.* \(local epoch 0, step 1\)"):
        train(site(), loss, examples=8, epochs=1, sgd=SGD(batch=2), parameters=[w])
    assert steps == [0, 1]


def test_a_loss_that_gives_up_is_told_with_its_step():
    w = torch.nn.Parameter(torch.ones(1))

    def loss(batch):
        if batch.step == 2:
            raise FloatingPointError("the encodings hold NaN")
        return {"loss": w.sum()}

    with pytest.raises(FloatingPointError, match=r"hold NaN \(local epoch \d, step 2\)"):
        train(site(), loss, examples=8, epochs=1, sgd=SGD(batch=2), parameters=[w])


def test_frozen_parameters_do_not_move():
    w, frozen = torch.nn.Parameter(torch.ones(1)), torch.nn.Parameter(torch.ones(1))
    frozen.requires_grad_(False)
    train(
        site(), lambda batch: {"loss": (w * frozen).sum()}, examples=4, epochs=1,
        sgd=SGD(batch=2), parameters=[w, frozen],
    )  # fmt: skip
    assert frozen.item() == 1
    assert w.item() != 1


def test_an_epoch_sees_every_example_once_in_balanced_batches():
    batches = list(shuffled_batches(33, 32, rng.stream(0, "b")))
    assert [len(batch) for batch in batches] == [17, 16]
    assert sorted(torch.cat(batches).tolist()) == list(range(33))
