import pytest

from calibre.engine.devices import Machine, main_device, plan
from calibre.errors import UserError
from calibre.sections import EngineSettings

LAPTOP = Machine(cores=4, gpus=0, mps=False)
SERVER = Machine(cores=32, gpus=2, mps=False)
MAC = Machine(cores=8, gpus=0, mps=True)


def devices(machine, amp=False, **settings):
    return plan(EngineSettings(**settings), machine, amp)


def test_one_cpu_worker_per_core():
    assert devices(LAPTOP) == ["cpu"] * 4
    assert devices(LAPTOP, workers=2) == ["cpu"] * 2
    assert devices(SERVER) == ["cpu"] * 32  # a GPU is used when asked for


def test_one_worker_per_gpu():
    assert devices(SERVER, device="auto") == ["cuda:0", "cuda:1"]
    assert devices(SERVER, device="cuda", workers=3) == ["cuda:0", "cuda:1", "cuda:0"]


def test_mixed_precision_is_for_gpus():
    assert devices(SERVER, device="cuda", amp=True) == ["cuda:0", "cuda:1"]


def test_auto_takes_what_there_is():
    assert devices(LAPTOP, device="auto") == ["cpu"] * 4
    assert devices(MAC, device="auto") == ["mps"]


def test_no_workers_means_this_process():
    assert devices(SERVER, device="auto", workers=0) == []
    assert main_device(EngineSettings(device="auto"), SERVER) == "cuda:0"
    assert main_device(EngineSettings(), SERVER) == "cpu"


@pytest.mark.parametrize(
    ("machine", "settings", "message"),
    [
        (LAPTOP, {"device": "cuda"}, "torch sees no GPU"),
        (SERVER, {"device": "mps"}, "there is none here"),
        (LAPTOP, {"amp": True}, "training.amp needs engine.device = 'cuda'"),
    ],
)
def test_devices_that_are_not_there_are_named(machine, settings, message):
    with pytest.raises(UserError, match=message):
        devices(machine, **settings)
