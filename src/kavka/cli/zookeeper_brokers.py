"""`--zookeeper`: where the brokers are, read from the tree that they register in."""

from __future__ import annotations

import logging

from kazoo.client import KazooClient
from kazoo.exceptions import KazooException, NoNodeError
from kazoo.handlers.threading import KazooTimeoutError

from kavka.cli.tool import ToolError, note
from kavka.metadata.paths import BROKER_IDS, CONTROLLER, BrokerRegistration, ControllerNode, MalformedNode, broker

TIMEOUT_S = 10.0


def brokers_in_zookeeper(tool: str, connect: str) -> str:
    """The addresses of the brokers that live, as `--bootstrap-server` takes them; says so on standard error."""
    logging.getLogger("kazoo").setLevel(logging.CRITICAL)
    where = f"ZooKeeper at {connect}"
    try:
        found = _addresses(connect)
    except KazooTimeoutError:
        raise ToolError(
            f"no ZooKeeper answers at {connect}; --bootstrap-server host:port names a broker instead"
        ) from None
    except (KazooException, MalformedNode) as error:
        raise ToolError(f"{where}: {type(error).__name__} {error}") from None
    if not found:
        raise ToolError(f"no broker is registered in the {where}")
    servers = ",".join(found)
    note(tool, f"--zookeeper is an older form: {servers} was found there, the rest is asked of the brokers")
    return servers


def controller_in_zookeeper(connect: str, timeout_s: float = 3.0) -> int | None:
    """The id of the controller; None where there is none, or nobody answers."""
    logging.getLogger("kazoo").setLevel(logging.CRITICAL)
    client = KazooClient(hosts=connect, timeout=timeout_s)
    try:
        client.start(timeout=timeout_s)
        return ControllerNode.decode(client.get(CONTROLLER)[0]).broker_id
    except (KazooTimeoutError, KazooException, MalformedNode):
        return None
    finally:
        client.stop()
        client.close()


def _addresses(connect: str) -> list[str]:
    client = KazooClient(hosts=connect, timeout=TIMEOUT_S)
    try:
        client.start(timeout=TIMEOUT_S)
        found = []
        for broker_id in sorted(int(name) for name in client.get_children(BROKER_IDS)):
            try:
                registration = BrokerRegistration.decode(broker_id, client.get(broker(broker_id))[0])
            except NoNodeError:
                continue  # It died between the two questions.
            found += [end_point.url().partition("://")[2] for end_point in registration.end_points[:1]]
        return found
    except NoNodeError:
        return []
    finally:
        client.stop()
        client.close()
