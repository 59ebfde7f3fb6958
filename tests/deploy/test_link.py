"""The coordinator's SuperLink in this process: Flower's own application, with and without the gate.

What it must refuse, it refuses here as it does on a network; that Flower by itself would not have
refused it is shown beside, for that is why the gate exists.
"""

import asyncio
import base64
import datetime
import os
import shutil
import stat

import httpx
import pytest
from flwr.app import Message, RecordDict
from flwr.app.message import remove_content_from_message
from flwr.common.serde import message_to_proto
from flwr.proto.control_pb2 import ListRunsRequest, StartRunRequest
from flwr.proto.fab_pb2 import Fab
from flwr.proto.fleet_pb2 import ActivateNodeRequest, PullMessagesRequest, PushMessagesRequest
from flwr.proto.node_pb2 import Node
from flwr.proto.runtime_pb2 import AcquireTaskRequest
from flwr.supercore.auth import create_superexec_auth_metadata, derive_auth_secret
from flwr.supercore.constant import NOOP_FEDERATION_ID, NodeStatus, TaskType
from flwr.supercore.inflatable.inflatable_object import get_object_tree
from flwr.supercore.primitives.asymmetric import public_key_to_bytes, sign_message
from flwr.supercore.protobuf.constants import PROTOBUF_MEDIA_TYPE
from flwr.supercore.runtime_version_compatibility import RuntimeVersionMetadata
from flwr.supercore.task_identity import TaskIdentity
from flwr.superlink.cli.flower_superlink import SuperLinkLifespan
from flwr.superlink.main import create_app

from calibre.deploy.gate import Gate
from calibre.deploy.keys import make_keys, private_key, renew
from calibre.deploy.link import LinkServer, Sites, _config, listen, write_token
from calibre.errors import UserError

TOKEN, SECRET = "the token of this start", b"its secret"


class Link:
    """``inner`` is what this machine reaches, ``outer`` what others do."""

    def __init__(self, keys):
        self.keys = keys
        make_keys(keys, "localhost", 8000, ["anna", "bert"])
        app = create_app(_config(1, TOKEN, SECRET), SuperLinkLifespan)
        self.said = []
        self.state = app.state.linkstate_factory.state()
        self.sites = Sites(keys, self.state, self.said.append)
        self.sites.look()
        self.inner, self.outer = app, Gate(app, self.sites.known)

    def call(self, app, path, request, headers=None):
        kind = {"content-type": PROTOBUF_MEDIA_TYPE}
        content = request.SerializeToString()
        asked = httpx.Request(
            "POST", f"https://link{path}", content=content, headers=kind | (headers or {})
        )
        return asyncio.run(answer(app, asked)).status_code

    def node(self, name):
        key = private_key(self.keys / "sites" / name)
        return self.state.get_node_id_by_public_key(public_key_to_bytes(key.public_key()))

    def signed(self, name):
        """What a site sends with every call."""
        key = private_key(self.keys / "sites" / name)
        now = datetime.datetime.now(datetime.UTC).isoformat()
        return {
            "flwr-public-key": base64.b64encode(public_key_to_bytes(key.public_key())).decode(),
            "flwr-timestamp": now,
            "flwr-signature": base64.b64encode(sign_message(key, now.encode())).decode(),
        }

    def join(self, name):
        key = private_key(self.keys / "sites" / name)
        request = ActivateNodeRequest(
            public_key=public_key_to_bytes(key.public_key()), heartbeat_interval=30
        )
        return self.call(self.outer, "/v1/fleet/activate-node", request, self.signed(name))

    def pull(self, name):
        request = PullMessagesRequest(node=Node(node_id=self.node(name) or 0))
        return self.call(self.outer, "/v1/fleet/pull-messages", request, self.signed(name))


async def answer(app, request):
    response = await httpx.ASGITransport(app).handle_async_request(request)
    return httpx.Response(response.status_code, content=await response.aread())


@pytest.fixture
def link(tmp_path):
    return Link(tmp_path / "keys")


def test_a_run_is_submitted_from_inside_with_the_token_and_never_from_outside(link):
    submit = "/v1/control/start-run", StartRunRequest(fab=Fab(content=b"code"))
    look = "/v1/control/list-runs", ListRunsRequest()
    good, bad = ({"authorization": f"Bearer {token}"} for token in (TOKEN, "another"))
    for path, request in (submit, look):
        for headers in (None, good, bad):
            assert link.call(link.outer, path, request, headers) == 404
        assert link.call(link.inner, path, request) == 401
        assert link.call(link.inner, path, request, bad) == 401
    assert link.call(link.inner, *look, good) == 200


def test_a_task_is_taken_with_the_secret_alone(link):
    request, path = AcquireTaskRequest(), "/v1/runtime/acquire-task"
    version = dict(RuntimeVersionMetadata.from_local_component("SuperExec").as_metadata())

    def with_secret(secret):
        method, auth = "/flwr.proto.Runtime/AcquireTask", derive_auth_secret(secret)
        made = create_superexec_auth_metadata(auth_secret=auth, method=method, request=request)
        return {**version, **made}

    assert link.call(link.outer, path, request, with_secret(SECRET)) == 404
    assert link.call(link.inner, path, request, version) == 401
    assert link.call(link.inner, path, request, with_secret(b"another")) == 401
    assert link.call(link.inner, path, request, with_secret(SECRET)) == 200


def test_a_site_joins_with_its_key_and_only_until_the_key_is_removed(link):
    assert link.said == ["site anna may join", "site bert may join"]
    assert link.join("anna") == 200
    assert link.pull("anna") == 200
    (link.keys / "sites" / "anna.pub").rename(link.keys / "anna.pub")
    link.sites.look()
    assert link.said[2:] == ["site anna may no longer join: its key has gone"]
    assert link.pull("anna") == 401
    assert link.join("anna") == 401
    assert not link.state.get_node_info(statuses=[NodeStatus.ONLINE])  # nobody waits for it
    (link.keys / "anna.pub").rename(link.keys / "sites" / "anna.pub")
    link.sites.look()
    assert link.join("anna") == 200


def test_a_key_that_was_removed_while_the_coordinator_was_down_is_turned_away_too(link):
    assert link.join("anna") == link.join("bert") == 200
    (link.keys / "sites" / "bert.pub").unlink()
    again = Link.__new__(Link)
    again.keys, again.state, again.said = link.keys, link.state, []
    again.sites = Sites(link.keys, link.state, again.said.append)
    again.sites.look()
    again.outer = Gate(link.inner, again.sites.known)
    assert again.said == ["site anna may join"]
    assert again.pull("anna") == 200
    assert again.pull("bert") == 401
    online = link.state.get_node_info(statuses=[NodeStatus.ONLINE])
    assert [node.node_id for node in online] == [link.node("anna")]


def test_a_key_may_come_later_and_one_that_is_none_is_told_of(link):
    make_keys(link.keys, "localhost", 8000, ["carl"])
    (link.keys / "sites" / "dora.pub").write_text("ssh-ed25519 AAAA nonsense")
    shutil.copy(link.keys / "sites" / "anna.pub", link.keys / "sites" / "zoe.pub")
    link.sites.look()
    assert link.said[2] == "site carl may join"
    assert "dora.pub is no key of a site" in link.said[3]
    assert "zoe.pub holds the key of anna" in link.said[4]
    assert link.join("carl") == 200
    said = list(link.said)
    link.sites.look()
    assert link.said == said  # once is enough


def test_a_site_can_give_no_orders_to_another_though_flower_would_pass_them_on(link):
    for name in ("anna", "bert"):
        link.join(name)
    run = link.state.create_run(
        "f/a", "1", "hash", {}, NOOP_FEDERATION_ID, None, "<id:none>", TaskType.SERVER_APP
    )
    (task,) = link.state.get_tasks(run_ids=[run])
    assert link.state.claim_task(task.task_id)
    assert link.state.activate_task(task.task_id)
    order = pushed(link, run, src=1, dst=link.node("bert"), caller="anna")
    path = "/v1/fleet/push-messages"
    assert link.call(link.outer, path, order, link.signed("anna")) == 403
    assert orders(link) == 0
    assert link.call(link.inner, path, order, link.signed("anna")) == 200
    assert orders(link) == 1


def orders(link):
    """Messages that wait for bert."""
    return len(link.state.message_ins_store)


def pushed(link, run, src, dst, caller):
    TaskIdentity.run_id, TaskIdentity.task_id, TaskIdentity.node_id = run, 1, src
    message = Message(RecordDict(), dst, "train")
    message.metadata.__dict__["_message_id"] = message.object_id
    return PushMessagesRequest(
        node=Node(node_id=link.node(caller)),
        messages_list=[message_to_proto(remove_content_from_message(message))],
        message_object_trees=[get_object_tree(message)],
    )


def test_a_renewed_certificate_is_taken_up_once_both_its_files_are_there(link):
    server = LinkServer(link.inner, link.keys)
    server.config.load()
    assert not server.renewed()
    kept = {name: (link.keys / name).read_bytes() for name in ("server.crt", "server.key")}
    renew(link.keys)
    new_key = (link.keys / "server.key").read_bytes()
    (link.keys / "server.key").write_bytes(kept["server.key"])  # as if it were not written yet
    assert not server.renewed()
    (link.keys / "server.key").write_bytes(new_key)
    assert server.renewed()
    assert not server.renewed()


def test_it_listens_on_any_address_of_this_machine_and_says_what_is_wrong_with_others():
    for host in ("127.0.0.1", "127.0.0.2", "localhost", "0.0.0.0"):
        with listen(host, 0) as place:
            assert place.getsockname()[1] > 0
    with listen("127.0.0.1", 0) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(UserError, match=f"127.0.0.1:{port}: Address already in use"):
            listen("127.0.0.1", port)
    with pytest.raises(UserError, match=r"192\.0\.2\.1:0: Cannot assign"):
        listen("192.0.2.1", 0)
    with pytest.raises(UserError, match="cannot listen on no such host:0"):
        listen("no such host", 0)


def test_the_token_lies_where_flower_looks_and_only_its_owner_reads_it(tmp_path):
    from flwr.cli import utils
    from flwr.supercore.credential_store.file_credential_store import FileCredentialStore

    write_token(tmp_path, "127.0.0.1:9", TOKEN)
    file = tmp_path / "credentials.yaml"
    assert stat.S_IMODE(os.stat(file).st_mode) == 0o600
    plugin = utils.load_cli_auth_plugin_from_connection("127.0.0.1:9", "oidc")
    plugin.store = FileCredentialStore(file)
    plugin.load_tokens()
    assert ("flwr-oidc-access-token", TOKEN) in plugin.write_tokens_to_metadata([])
