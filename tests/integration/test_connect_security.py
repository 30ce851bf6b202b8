"""Two Connect workers with HTTPS, client certificates, basic authentication and signed internal
requests. curl is the client."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from kavka.security.authority import Authority
from tests.support.connect_worker import TIMEOUT_S, ConnectWorker
from tests.support.missing import need_command
from tests.support.our_consumer import read_all
from tests.support.processes import wait_until
from tests.support.targets import Target

pytestmark = [pytest.mark.java, pytest.mark.timeout(600)]

EXTENSION = "org.apache.kafka.connect.rest.basic.auth.extension"
DATAGEN = {"connector.class": "Datagen", "kafka.topic": "people", "quickstart": "users"}
KEY_TTL_MS = 10_000


@dataclass
class Group:
    """The two workers, and the files of a client."""

    folder: Path
    target: Target
    workers: list[ConnectWorker]

    def curl(
        self, url: str, *arguments: str, user: str | None = "admin:s3cret", has_certificate: bool = True
    ) -> tuple[int, Any, str]:
        """Return the status (0 without a response), the JSON of the body and the headers."""
        command = [need_command("curl"), "-sS", "-i", "--max-time", "60", "--cacert", str(self.folder / "ca.pem")]
        if has_certificate:
            command += ["--cert", str(self.folder / "client.pem")]
        if user is not None:
            command += ["-u", user]
        result = subprocess.run([*command, *arguments, url], capture_output=True, text=True, check=False)
        if not result.stdout.startswith("HTTP/1.1 "):
            assert result.returncode != 0, result.stdout
            return 0, None, result.stderr
        head, _, body = result.stdout.replace("\r\n", "\n").partition("\n\n")
        return int(head.split()[1]), json.loads(body) if body else None, head

    def send(self, worker: ConnectWorker, method: str, path: str, body: Any = None) -> tuple[int, Any]:
        data = [] if body is None else ["-H", "Content-Type: application/json", "-d", json.dumps(body)]
        return self.curl(worker.url + path, "-X", method, *data)[:2]

    def post_tasks(self, name: str, body: str, *headers: str) -> int:
        """Send an internal request to the leader, without a user."""
        options = [option for header in ("Content-Type: application/json", *headers) for option in ("-H", header)]
        return self.curl(
            f"{self.leader.url}/connectors/{name}/tasks", "-X", "POST", "-d", body, *options, user=None
        )[0]  # fmt: skip

    def status(self, name: str) -> dict[str, Any]:
        code, body = self.send(self.leader, "GET", f"/connectors/{name}/status")
        return body if code == 200 else {}

    @property
    def leader(self) -> ConnectWorker:
        return next(worker for worker in self.workers if worker.name == _leader_of(self.workers[0]))

    @property
    def follower(self) -> ConnectWorker:
        return next(worker for worker in self.workers if worker is not self.leader)

    def config_records(self) -> dict[str, Any]:
        """The last value of each key of the config topic."""
        records = read_all(self.target, f"secured-{self.folder.name}-config")
        return {bytes(record.key).decode(): json.loads(bytes(record.value)) for record in records if record.value}

    def signature(self, body: str) -> tuple[str, ...]:
        """The headers of KIP-507 for the current key, computed without Kavka's code."""
        key = base64.b64decode(self.config_records()["session-key"]["key"])
        mac = base64.b64encode(hmac.new(key, body.encode(), hashlib.sha256).digest()).decode()
        return f"X-Connect-Authorization: {mac}", "X-Connect-Request-Signature-Algorithm: HmacSHA256"


@pytest.fixture(scope="module")
def group(target: Target, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Group]:
    folder = tmp_path_factory.mktemp("secured")
    authority = Authority()
    authority.write_pem(folder / "ca.pem")
    authority.certificate_of("client").write_pem(folder / "client.pem")
    (folder / "users").write_text("admin=s3cret\n")
    workers: list[ConnectWorker] = []
    try:
        for number in range(2):
            worker_folder = folder / str(number)
            worker_folder.mkdir()
            authority.certificate_of("worker", hosts=("127.0.0.1",)).write_pem(worker_folder / "worker.pem")
            settings = {
                "listeners.https.ssl.keystore.type": "PEM",
                "listeners.https.ssl.keystore.location": worker_folder / "worker.pem",
                "listeners.https.ssl.truststore.type": "PEM",
                "listeners.https.ssl.truststore.location": folder / "ca.pem",
                "listeners.https.ssl.client.auth": "required",
                "rest.extension.classes": f"{EXTENSION}.BasicAuthSecurityRestExtension",
                "rest.extension.jaas.config": f'{EXTENSION}.PropertyFileLoginModule required file="{folder}/users";',
                "inter.worker.key.ttl.ms": KEY_TTL_MS,
            }
            name = f"secured-{folder.name}"
            workers.append(
                ConnectWorker(worker_folder, target.bootstrap_servers, name, folder, scheme="https", **settings)
            )
        for worker in workers:
            worker.wait_until_ready()
        group = Group(folder, target, workers)
        wait_until(
            lambda: _leader_of(workers[0]) == _leader_of(workers[1]), timeout=TIMEOUT_S,
            what="both workers have the same leader", interval=0.2,
        )  # fmt: skip
        yield group
        for worker in workers:
            assert worker.process.stop(120) == 0, worker.process.log_tail()
    finally:
        for worker in workers:
            worker.process.kill()


def _leader_of(worker: ConnectWorker) -> str:
    """The leader in the last generation that the worker has joined."""
    return worker.log().rpartition("the leader is ")[2].split(",")[0]


def test_a_request_to_the_follower_is_forwarded_to_the_leader(group: Group) -> None:
    for name in ("a", "b"):
        body = {"name": name, "config": DATAGEN, "initial_state": "PAUSED"}
        code, response = 409, None
        while code == 409:
            code, response = group.send(group.follower, "POST", "/connectors", body)
        assert code == 201, response
    assert group.send(group.leader, "GET", "/connectors") == (200, ["a", "b"])
    # A client with the wrong password is rejected before the request is forwarded.
    delete = ("-X", "DELETE")
    assert group.curl(f"{group.follower.url}/connectors/a", *delete, user="admin:guess")[0] == 401
    assert group.send(group.follower, "GET", "/connectors") == (200, ["a", "b"])


@pytest.mark.parametrize("user", [None, "admin:guess", "nobody:s3cret"])
def test_a_client_without_the_password_is_rejected(group: Group, user: str | None) -> None:
    code, body, head = group.curl(f"{group.leader.url}/connectors", user=user)
    assert (code, body["error_code"]) == (401, 401)
    assert 'www-authenticate: basic realm="kafka connect"' in head.lower()


def test_a_client_without_a_certificate_or_tls_is_rejected(group: Group) -> None:
    assert group.curl(f"{group.leader.url}/connectors", has_certificate=False)[0] == 0
    assert group.curl(f"http://{group.leader.name}/connectors")[0] == 0
    assert group.curl(f"{group.leader.url}/connectors")[0] == 200


def test_the_follower_publishes_its_task_with_a_signed_request(group: Group) -> None:
    """The connector of the follower runs, and its task configuration is in the config topic."""
    wait_until(
        lambda: (
            {group.status(name).get("connector", {}).get("worker_id") for name in ("a", "b")}
            == {worker.name for worker in group.workers}
        ),
        timeout=TIMEOUT_S,
        what="each worker has a connector",
        interval=0.5,
    )
    (name,) = (name for name in ("a", "b") if group.status(name)["connector"]["worker_id"] == group.follower.name)
    assert f"task-{name}-0" not in group.config_records()
    assert group.send(group.leader, "PUT", f"/connectors/{name}/resume")[0] == 202
    wait_until(
        lambda: f"commit-{name}" in group.config_records(), timeout=TIMEOUT_S,
        what="the task configuration is published", interval=0.5,
    )  # fmt: skip
    task = group.config_records()[f"task-{name}-0"]["properties"]
    assert task == {**DATAGEN, "name": name, "task.class": "Datagen"}
    # Also requests that only the owner of a connector handles are forwarded.
    assert group.send(group.leader, "POST", f"/connectors/{name}/restart?includeTasks=true")[0] == 202


def test_forged_and_replayed_internal_requests_are_rejected(group: Group) -> None:
    body = json.dumps([{**DATAGEN, "name": "a", "task.class": "Datagen"}])
    assert group.post_tasks("a", body) == 400
    forged = ("X-Connect-Authorization: " + base64.b64encode(b"x" * 32).decode(),)
    assert group.post_tasks("a", body, *forged, "X-Connect-Request-Signature-Algorithm: HmacSHA256") == 403
    assert group.post_tasks("a", body, *forged, "X-Connect-Request-Signature-Algorithm: HmacMD5") == 400
    recorded: tuple[str, ...] = ()

    def is_accepted() -> bool:
        # The key may be replaced before the request arrives.
        nonlocal recorded
        recorded = group.signature(body)
        return group.post_tasks("a", body, *recorded) == 204

    wait_until(is_accepted, timeout=60, what="a signed request is accepted", interval=0.1)
    wait_until(
        lambda: group.post_tasks("a", body, *recorded) == 403, timeout=60,
        what="the recorded request is rejected, once the key is replaced", interval=0.5,
    )  # fmt: skip
    assert group.send(group.leader, "GET", "/connectors") == (200, ["a", "b"])
