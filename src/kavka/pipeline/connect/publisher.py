"""Publishes the session key of the group and the configurations of tasks, in a separate thread.

As in Kafka Connect, only the leader writes to the config topic. The leader replaces the session key
when it has expired. The worker that runs a connector sends the configurations of its tasks to the
leader, in a signed request (KIP-507). Each pass compares the stored records with those that should
be stored, so a lost request is repeated.
"""

from __future__ import annotations

import json
import logging
import threading
import time
from collections.abc import Mapping, Sequence
from typing import Protocol
from urllib.parse import quote

from kavka.pipeline.connect.errors import ConnectError
from kavka.pipeline.connect.peers import PeerError, Peers
from kavka.pipeline.connect.session_keys import KeySettings
from kavka.pipeline.connect.stores import ConfigStore

logger = logging.getLogger(__name__)

_INTERVAL_S = 1.0
_RETRY_S = 10.0
_REQUEST_TIMEOUT_S = 30.0
_JOIN_TIMEOUT_S = 5.0


class Member(Protocol):
    """A worker of a group, as the publisher uses it."""

    configs: ConfigStore

    def leader_url(self) -> str | None:
        """The address of the leader; None if it is unknown, "" if it is this worker."""

    def task_configs(self) -> Mapping[str, Sequence[Mapping[str, str]]]:
        """The configurations of the tasks that this worker runs, by connector."""


class Publisher:
    """Owns the thread. `close` ends it."""

    def __init__(self, member: Member, keys: KeySettings, peers: Peers) -> None:
        self._member = member
        self._keys = keys
        self._peers = peers
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="connect-publisher", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        self._closing.set()
        if self._thread.is_alive():
            self._thread.join(_JOIN_TIMEOUT_S)

    def _run(self) -> None:
        delay_s = _INTERVAL_S
        while not self._closing.wait(delay_s):
            delay_s = _INTERVAL_S
            try:
                self.publish()
            except Exception as error:
                delay_s = _RETRY_S
                if self._closing.is_set():
                    return
                logger.warning("Cannot publish the configurations of tasks, retrying: %s", error)

    def publish(self) -> None:
        """Writes the records that differ from the stored ones, or sends them to the leader. Raises
        ConnectError and PeerError."""
        leader_url, configs = self._member.leader_url(), self._member.configs
        if leader_url is None:
            return
        if not leader_url and self._keys.must_replace(configs.session_key(), _now_ms()):
            configs.put_session_key(self._keys.new_key(_now_ms()))
        for name, task_configs in self._member.task_configs().items():
            if configs.task_configs(name) == task_configs:
                continue
            if leader_url:
                self._send(leader_url, name, task_configs)
            else:
                configs.put_task_configs(name, task_configs)

    def _send(self, leader_url: str, name: str, task_configs: Sequence[Mapping[str, str]]) -> None:
        key = self._member.configs.session_key()
        if key is None:
            return
        body = json.dumps([dict(config) for config in task_configs]).encode()
        url = f"{leader_url.rstrip('/')}/connectors/{quote(name)}/tasks?forward=false"
        try:
            response = self._peers.send("POST", url, body, self._keys.signature(key, body), _REQUEST_TIMEOUT_S)
        except PeerError as error:
            raise PeerError(f"the leader {leader_url} does not respond: {error}") from error
        # 404 and 409: the connector or the leader has changed. The next pass sees the change.
        if response.code >= 300 and response.code not in (404, 409):
            raise ConnectError(f"the leader {leader_url} responded with status {response.code}")


def _now_ms() -> int:
    return int(time.time() * 1000)
