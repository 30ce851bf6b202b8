"""Reading the brokers and the controller from ZooKeeper, for `--zookeeper` and `kavka cluster`."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator

from kazoo.client import KazooClient
from kazoo.exceptions import KazooException, NoNodeError
from kazoo.handlers.threading import KazooTimeoutError

from kavka.cli.tool import ToolError, note
from kavka.metadata.paths import BROKER_IDS, CONTROLLER, BrokerRegistration, ControllerNode, MalformedNode, broker

CONNECT_TIMEOUT_S = 10.0


def brokers_in_zookeeper(tool: str, connect: str) -> str:
    """Return the addresses of the registered brokers in the format of `--bootstrap-server`, and
    print a deprecation note. Raise ToolError if there are none or they cannot be read."""
    try:
        addresses = _addresses(connect)
    except KazooTimeoutError:
        raise ToolError(
            f"no ZooKeeper server is reachable at {connect}; use --bootstrap-server host:port instead"
        ) from None
    except (KazooException, MalformedNode) as error:
        raise ToolError(
            f"Cannot read the brokers from ZooKeeper at {connect}: {type(error).__name__} {error}"
        ) from None
    if not addresses:
        raise ToolError(f"no broker is registered in the ZooKeeper at {connect}")
    servers = ",".join(addresses)
    note(tool, f"--zookeeper is deprecated: using --bootstrap-server {servers}")
    return servers


def controller_in_zookeeper(connect: str, timeout_s: float = 3.0) -> int | None:
    """Return the id of the controller; None if there is none or ZooKeeper is not reachable."""
    try:
        with _connected(connect, timeout_s) as client:
            return ControllerNode.decode(client.get(CONTROLLER)[0]).broker_id
    except (KazooTimeoutError, KazooException, MalformedNode):
        return None


def _addresses(connect: str) -> list[str]:
    addresses: list[str] = []
    with _connected(connect, CONNECT_TIMEOUT_S) as client, contextlib.suppress(NoNodeError):
        for broker_id in sorted(int(name) for name in client.get_children(BROKER_IDS)):
            try:
                registration = BrokerRegistration.decode(broker_id, client.get(broker(broker_id))[0])
            except NoNodeError:
                continue  # The broker stopped between the two reads.
            addresses += [end_point.url().partition("://")[2] for end_point in registration.end_points[:1]]
    return addresses


@contextlib.contextmanager
def _connected(connect: str, timeout_s: float) -> Iterator[KazooClient]:
    logging.getLogger("kazoo").setLevel(logging.CRITICAL)
    client = KazooClient(hosts=connect, timeout=timeout_s)
    try:
        client.start(timeout=timeout_s)
        yield client
    finally:
        client.stop()
        client.close()
