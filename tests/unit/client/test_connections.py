"""Reading a client's connections from another thread."""

from __future__ import annotations

from typing import Any

import pytest

from kavka.client.admin.aio import Admin
from kavka.client.connections import Connections
from kavka.client.consumer.aio import Consumer
from kavka.client.producer.aio import Producer

SERVERS = "127.0.0.1:1"


class OpenedMeanwhile:
    """A link that adds another link while it is read."""

    def __init__(self, links: dict[Any, Any]) -> None:
        self._links = links

    @property
    def connection(self) -> None:
        self._links[object()] = self


@pytest.mark.parametrize("kind", [Producer, Consumer, Admin])
def test_metrics_can_be_read_while_connections_open(kind: Any) -> None:
    client = kind(bootstrap_servers=SERVERS)
    cluster: Connections = client.cluster if kind is Admin else client._core.cluster
    cluster._links[0, ""] = OpenedMeanwhile(cluster._links)  # type: ignore[assignment]
    assert client.metrics()["connection-count"] == 0
    assert len(cluster._links) == 2
