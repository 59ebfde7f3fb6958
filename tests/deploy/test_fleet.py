"""A site's connection, against the coordinator's real application in this process."""

import asyncio
import threading

import httpx
import pytest
from flwr.supercore.constant import NodeStatus

from calibre.deploy import fleet
from calibre.deploy.fleet import Fleet, NodeRefusedError, RunEndedError
from calibre.deploy.keys import private_key
from tests.deploy.test_link import Link, answer


@pytest.fixture
def link(tmp_path, monkeypatch):
    made = Link(tmp_path / "keys")
    made.trouble = []  # what happens to the next calls, instead of an answer
    made.pauses = []
    monkeypatch.setattr(fleet.time, "sleep", made.pauses.append)
    return made


def site(link, name="anna"):
    def deliver(request):
        if link.trouble:
            problem = link.trouble.pop(0)
            if isinstance(problem, Exception):
                raise problem
            return httpx.Response(problem)
        return asyncio.run(answer(link.outer, request))

    keys = link.keys
    made = Fleet("link", (keys / "ca.crt").read_bytes(), private_key(keys / "sites" / name))
    made.client._client = httpx.Client(transport=httpx.MockTransport(deliver))
    return made


def online(link):
    return [node.node_id for node in link.state.get_node_info(statuses=[NodeStatus.ONLINE])]


def test_a_site_is_present_while_it_is_connected_and_not_after(link):
    assert online(link) == []
    with site(link) as anna:
        assert online(link) == [anna.node.node_id] == [link.node("anna")]
        assert anna.receive() is None
    assert online(link) == []


def test_calls_are_made_again_while_the_network_or_the_coordinator_is_away(link):
    with site(link) as anna:
        link.trouble = [httpx.ConnectError("no route"), 503, httpx.ReadTimeout(""), 502, 504, 503]
        assert anna.receive() is None
    assert link.pauses == [1.0, 2.0, 4.0, 8.0, 16.0, 20.0]


def test_a_site_whose_key_is_removed_is_told_so(link):
    with site(link) as anna:
        (link.keys / "sites" / "anna.pub").unlink()
        link.sites.look()
        with pytest.raises(NodeRefusedError):
            anna.receive()
    with pytest.raises(NodeRefusedError), site(link):
        pass


def test_a_coordinator_that_was_started_anew_does_not_know_the_node_but_lets_it_join(link):
    with site(link) as anna:
        again = Link(link.keys)
        link.outer, link.state = again.outer, again.state
        with pytest.raises(NodeRefusedError):
            anna.receive()
    with site(link) as anna:
        assert online(again) == [anna.node.node_id]


def test_other_answers_are_for_a_person_and_an_ended_run_is_one_of_them_less(link):
    with site(link) as anna:
        link.trouble = [403]
        with pytest.raises(RunEndedError):
            anna.pull(1, "x")
        link.trouble = [412]
        with pytest.raises(httpx.HTTPStatusError):
            anna.receive()
    assert link.pauses == []


def test_a_site_that_is_there_already_is_not_let_in_twice(link):
    with site(link), pytest.raises(httpx.HTTPStatusError, match="412"), site(link):
        pass


def test_a_site_says_that_it_is_there_until_it_leaves_also_past_a_broken_network(link, monkeypatch):
    beats, two = [], threading.Event()

    def heard(request):
        beats.append(request.node.node_id)
        if len(beats) >= 2:
            two.set()
        raise httpx.ConnectError("no route")

    monkeypatch.setattr(fleet, "BEAT_SECONDS", 0.001)
    monkeypatch.setattr(fleet.FleetHttpClient, "SendNodeHeartbeat", lambda _, asked: heard(asked))
    with site(link) as anna:
        assert two.wait(60)
    anna.beating.join(60)
    assert not anna.beating.is_alive()
    assert set(beats) == {anna.node.node_id}
