"""The listener of `--status`."""

from __future__ import annotations

import contextlib
import json
import urllib.request
from collections.abc import Iterator

import pytest

from kavka.common.types import TopicPartition
from kavka.pipeline.mirror.status import RUNNING, FlowStatus, StatusListener
from kavka.web import connections
from tests.support.half_open import TIMEOUT_S, check_half_open, get


@pytest.fixture
def port() -> Iterator[int]:
    flow = FlowStatus("A->B", RUNNING, records=3, lag={TopicPartition("t", 0): 2})
    with contextlib.closing(StatusListener("127.0.0.1", 0, lambda: [flow])) as listener:
        yield listener.port


def test_only_status_and_metrics_are_served(port: int) -> None:
    for path in ("/", "/status"):
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=TIMEOUT_S) as response:
            assert response.headers["Content-Type"] == "application/json"
            assert json.load(response)[0]["lag_by_partition"] == {"t": {"0": 2}}
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=TIMEOUT_S) as response:
        assert b'kavka_mirror_records{flow="A->B"} 3.0' in response.read()
    assert get(port, "/other") == 404


def test_half_open_requests_block_no_other_client(port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "HEADER_TIMEOUT_S", 2.0)
    check_half_open(port, "/status")
