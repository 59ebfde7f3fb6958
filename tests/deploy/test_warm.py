"""The process that answers a site's messages: kept between messages, replaced when it must be."""

import contextlib
import subprocess
import sys
import time

import numpy as np
import psutil
import pytest
from flwr.app import Array, ArrayRecord, Message
from flwr.supercore.task_identity import TaskIdentity

from calibre.deploy.warm import Warm
from tests.deploy.apps import asking


@pytest.fixture
def worker():
    warm = Warm(77, {"given": "by the site"}, "tests.deploy.apps:app")
    yield warm
    warm.close()


def message(what, run=1, ttl=600.0):
    TaskIdentity.run_id, TaskIdentity.task_id, TaskIdentity.node_id = run, 1, 1
    made = Message(asking(what), 77, "query", ttl=ttl)
    made.metadata.__dict__["_message_id"] = f"{what} of {run}"
    return made


def told(reply):
    return reply.content["told"]


def test_one_process_answers_a_runs_messages_and_a_new_run_gets_a_new_one(worker):
    first, second = worker.answer(message("one")), worker.answer(message("two"))
    assert told(first)["pid"] == told(second)["pid"] == worker.process.pid
    assert told(second)["seen"] == ["one", "two"]
    assert first.metadata.reply_to_message_id == "one of 1"
    assert (first.metadata.src_node_id, first.metadata.dst_node_id) == (77, 1)
    third = told(worker.answer(message("three", run=2)))
    assert third["pid"] != told(first)["pid"]
    assert third["seen"] == ["three"]
    assert (third["node"], third["run"], third["given"]) == (77, 2, "by the site")
    assert third["settings"] == 0  # nothing that was submitted with the run comes here


def test_tensors_come_back_with_the_same_bits(worker):
    numbers = np.random.default_rng(0).normal(size=(300, 1000)).astype(np.float32)
    asked = message("echo")
    asked.content["tensors"] = ArrayRecord({"block": Array(numbers)})
    reply = worker.answer(asked)
    assert reply.content["tensors"]["block"].numpy().tobytes() == numbers.tobytes()


@pytest.mark.parametrize(
    ("what", "why"), [("die", "killed by the system"), ("stop", "it ended with code 7")]
)
def test_a_worker_that_ends_is_told_of_and_replaced(worker, what, why):
    reply = worker.answer(message(what))
    assert reply.has_error()
    assert why in reply.error.reason
    assert reply.metadata.reply_to_message_id == f"{what} of 1"
    assert told(worker.answer(message("again")))["seen"] == ["again"]


def test_a_worker_that_takes_longer_than_the_message_lives_is_ended(worker):
    told(worker.answer(message("warm up")))
    before, began = worker.process.pid, time.monotonic()
    reply = worker.answer(message("sleep", ttl=0.3))
    assert "longer than it may" in reply.error.reason
    assert time.monotonic() - began < 30
    assert not running(before)


NODE = """
import time
from calibre.deploy.warm import Warm, written
from tests.deploy.test_warm import message
worker = Warm(77, {"given": ""}, "tests.deploy.apps:app")
worker.answer(message("hello"))
worker.connection.send_bytes(written(message("sleep")))
print(worker.process.pid, flush=True)
time.sleep(600)
"""


def test_a_worker_ends_with_its_node_also_in_the_middle_of_its_work():
    node = subprocess.Popen([sys.executable, "-c", NODE], stdout=subprocess.PIPE)
    worker = int(node.stdout.readline())
    assert running(worker)
    node.kill()
    node.wait()
    end = time.monotonic() + 30
    while running(worker) and time.monotonic() < end:
        time.sleep(0.05)
    assert not running(worker)


def running(pid):
    with contextlib.suppress(psutil.NoSuchProcess):
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    return False
