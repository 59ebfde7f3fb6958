"""Who does the work: workers that die are replaced, and whatever happens has a name."""

import signal

import pytest
import torch

from calibre.engine import rounds
from calibre.engine.child import Worker
from calibre.engine.crew import Crew, InProcess, Processes, one_thread
from calibre.engine.messages import Failed, Job, Personalised, Updated
from calibre.engine.patience import Patience
from calibre.engine.rounds import keep
from calibre.errors import UserError
from calibre.experiment import read
from calibre.report import events
from calibre.run_folder import RunFolder
from tests.engine.faulty import run_faulty
from tests.methods.helpers import equal, host, results


@pytest.mark.parametrize(("fault", "workers"), [("kill", 2), ("half", 1)])
def test_a_killed_worker_is_replaced_and_its_client_named(tiny, tmp_path, fault, workers):
    changes = ("training.rounds=1", f"engine.workers={workers}")
    metrics, failures = run_faulty(tiny, tmp_path, fault, *changes)
    assert [(f.client, f.round) for f in failures] == [(1, 1)]
    assert "killed by the system (SIGKILL" in failures[0].cause
    assert metrics.failures == 1
    assert metrics.train.clients == 5


@pytest.mark.parametrize("workers", [0, 1])
def test_an_error_of_a_million_words_is_cut_short(tiny, tmp_path, workers):
    _, failures = run_faulty(tiny, tmp_path, "wordy", f"engine.workers={workers}")
    assert [(f.client, f.round) for f in failures] == [(1, 1), (1, 2)]
    for failure in failures:
        assert failure.cause.startswith("RuntimeError: no no no")
        assert len(failure.cause) <= 2000
        assert "in local_update" in failure.detail
        assert len(failure.detail) <= 20_000


def test_outcomes_come_in_the_order_of_the_jobs_and_are_the_same_from_any_crew(tiny, tmp_path):
    """More jobs than workers may have waiting, among them one that fails."""
    experiment = tiny("method.name=fedavg")
    folder = RunFolder(tmp_path)
    home = host(experiment, tmp_path)
    folder.open(experiment)
    keep(home.federation, experiment, folder)
    state = home.initial_state()
    jobs = [Job(kind="update", clients=(client % 5,), kept=(0,)) for client in range(12)]
    jobs[7] = Job(kind="update", clients=(99,), kept=(0,))
    jobs.append(Job(kind="personalize", clients=(0, 6), kept=(0, 0)))
    crews: list[Crew] = [InProcess(home), Processes(tmp_path, ["cpu", "cpu"], [])]
    try:
        alone, shared = ([*crew.run(state, jobs)] for crew in crews)
    finally:
        for crew in crews:
            crew.close()
    folder.close()
    for outcomes in (alone, shared):
        assert [outcome.job for outcome in outcomes] == jobs
        kinds = [Updated] * 7 + [Failed] + [Updated] * 4 + [Personalised]
        assert [type(outcome.reply) for outcome in outcomes] == kinds
    for one, other in zip(alone, shared, strict=True):
        assert equal(one.tensors, other.tensors)
    assert alone[-1].reply == shared[-1].reply
    assert not equal(alone[0].tensors, alone[1].tensors)
    assert equal(alone[0].tensors, alone[5].tensors)  # the same client, the same bits


def test_outcomes_that_nobody_waited_for_are_not_taken_for_others(tiny, tmp_path):
    """Whoever stops listening early leaves workers busy: their replies come during what follows."""
    experiment = tiny("method.name=fedavg")
    folder = RunFolder(tmp_path)
    home = host(experiment, tmp_path)
    folder.open(experiment)
    keep(home.federation, experiment, folder)
    crew = Processes(tmp_path, ["cpu", "cpu"], [])
    jobs = [Job(kind="update", clients=(client,), kept=(0,)) for client in range(5)]
    try:
        next(crew.run(home.initial_state(), jobs))
        personal = [Job(kind="personalize", clients=(client,), kept=(0,)) for client in range(4)]
        outcomes = [*crew.run(home.initial_state(), personal)]
    finally:
        crew.close()
        folder.close()
    assert [type(outcome.reply) for outcome in outcomes] == [Personalised] * 4


def test_a_worker_that_cannot_start_ends_the_run_in_words(tiny, tmp_path):
    with pytest.raises(UserError, match=r"a worker could not start: its worker ended with code 1"):
        next(Processes(tmp_path, ["cpu"], []).run(host(tiny(), tmp_path).initial_state(), [JOB]))


JOB = Job(kind="update", clients=(0,), kept=(0,))


def test_workers_that_were_started_early_are_used_and_spare_ones_stopped(tmp_path):
    prepared = [Worker() for _ in range(3)]
    crew = Processes(tmp_path, ["cpu", "cpu"], prepared)
    assert crew.workers == prepared[:2]
    assert prepared[2].process.poll() is not None
    crew.close()
    assert all(worker.process.poll() is not None for worker in prepared)


def test_the_number_of_threads_is_given_back():
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        with one_thread():
            assert torch.get_num_threads() == 1
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)


def hanging(tiny, tmp_path, fault, *changes):
    (tmp_path / "signs").mkdir()
    return tiny(
        "method.name=tests.engine.hanging:Hanging", f"method.fault={fault}",
        f"method.signs={tmp_path / 'signs'}", "training.clients_per_round=5", *changes,
    )  # fmt: skip


def in_process(experiment):
    return read(experiment, engine={"workers": 0})


def test_a_stopped_worker_is_replaced_and_its_job_done_again_with_the_same_bits(tiny, tmp_path):
    experiment = hanging(
        tiny, tmp_path, "stop once", "training.rounds=1", "engine.workers=2", "engine.deadline=8"
    )
    metrics = rounds.run(experiment, tmp_path / "run")
    assert len(list((tmp_path / "signs").iterdir())) == 1  # it did stop
    assert metrics.failures == 0
    rounds.run(in_process(experiment), tmp_path / "calm")  # with the sign, nothing stops
    assert results(tmp_path / "run") == results(tmp_path / "calm")


def test_a_job_that_stops_two_workers_is_its_clients_failure(tiny, tmp_path):
    experiment = hanging(
        tiny, tmp_path, "stop", "training.rounds=1", "engine.workers=1", "engine.deadline=5"
    )
    metrics = rounds.run(experiment, tmp_path / "run")
    log = [e for e in events.read(tmp_path / "run" / "events.jsonl") if e.event == "failure"]
    assert [(e.client, e.round) for e in log] == [(1, 1)]
    assert "two workers in turn did not answer" in log[0].cause
    assert metrics.failures == 1


def test_a_worker_that_takes_no_more_is_noticed(tmp_path):
    """Stopped before a state is sent that no pipe holds."""
    worker = Worker()
    worker.process.send_signal(signal.SIGSTOP)
    worker.wait_at_most(1)
    with pytest.raises(BlockingIOError):
        worker.connection.send_bytes(bytes(10**7))
    worker.stop()


def test_patience_grows_with_the_slowest_and_has_a_floor():
    patience = Patience(None)
    assert patience.limit(JOB) == 3600
    patience.learn(JOB, 3)
    assert patience.limit(JOB) == 600
    patience.learn(JOB, 100)
    patience.learn(JOB, 50)
    assert patience.limit(JOB) == 2000
    group = JOB.model_copy(update={"clients": (0, 1, 2)})
    assert patience.limit(group) == 6000
    assert patience.limit(Job(kind="personalize", clients=(0,), kept=(0,))) == 3600
    assert Patience(7).limit(group) == 21


@pytest.mark.parametrize(("workers", "times"), [(0, 2), (1, 1)])
def test_a_full_disk_stops_the_run_and_is_no_clients_failure(tiny, tmp_path, workers, times):
    experiment = hanging(
        tiny, tmp_path, "full once", f"training.rounds={times}", f"engine.workers={workers}"
    )
    for _ in range(times):  # once in each round
        with pytest.raises(UserError, match=r"^the disk is full: .*signs/.*calibre-fl resume"):
            rounds.run(experiment, tmp_path / "run")
    metrics = rounds.run(experiment, tmp_path / "run")
    assert metrics.failures == 0
    rounds.run(in_process(experiment), tmp_path / "calm")
    assert results(tmp_path / "run") == results(tmp_path / "calm")
