"""The cost of ACLs and quotas for a producer: a broker with an authorizer, 1,000 ACLs and quotas
that are never reached, compared with a broker without them. Clients are User:ANONYMOUS, which an
ACL permits."""

from __future__ import annotations

import tempfile
from pathlib import Path

from bench import produce
from bench.measure import Options, Row
from bench.python_clients import ClientRow
from bench.sides import APACHE, KAVKA, SETTINGS, Side
from kavka import Admin, QuotaEntity
from kavka.security.acls import AclBinding, Operation, PatternType, ResourceType
from tests.support.acls import acl, start_with_acls

ACLS = 1000
# Bytes per second.
UNREACHED = 1e12


class AuthorizingSide(Side):
    """A Kavka broker with an authorizer and quotas. It runs as soon as it is created."""

    def __init__(self, folder: Path) -> None:
        super().__init__(KAVKA, folder)
        self.broker = start_with_acls(folder, *_bindings(), overrides=SETTINGS)
        try:
            with Admin(bootstrap_servers=self.bootstrap) as admin:
                bounds = {"producer_byte_rate": UNREACHED, "consumer_byte_rate": UNREACHED}
                admin.alter_client_quotas({QuotaEntity(user="ANONYMOUS"): bounds})
        except BaseException:
            self.close()
            raise


class PlainSide(Side):
    """A Kavka broker without an authorizer, in the place of Apache Kafka."""

    def __init__(self, folder: Path) -> None:
        super().__init__(KAVKA, folder)
        self.name = APACHE


def run(options: Options) -> list[Row]:
    sides: dict[str, Side] = {}
    with tempfile.TemporaryDirectory(prefix="kavka-bench-") as name:
        try:
            sides[KAVKA] = AuthorizingSide(Path(name) / "with")
            sides[APACHE] = PlainSide(Path(name) / "without")
            sides[APACHE].start()
            figures = produce.measure(sides, options, "produce with ACLs and quotas, and without")
        finally:
            for side in sides.values():
                side.close()
    what = f"produce with an authorizer, {ACLS:,} ACLs and quotas, compared with none of them"
    return [
        ClientRow(what, "records/s", figures.rates, "≥ 0.97 ×", 0.97),
        ClientRow("broker CPU time with them, compared with none of them", "s", figures.cpu),
    ]


def _bindings() -> list[AclBinding]:
    permitted = [
        acl(Operation.ALL, ResourceType.TOPIC, "benchmark"),
        acl(Operation.ALTER_CONFIGS, ResourceType.CLUSTER),
    ]
    return permitted + other_bindings(ACLS - len(permitted))


def other_bindings(count: int) -> list[AclBinding]:
    """ACLs of other users: of topics by name and by prefixes of many lengths, and of groups."""
    bindings = []
    for number in range(count):
        principal = f"User:user-{number % 100}"
        if number % 10 == 0:
            prefix = f"team-{number}-{'x' * (number % 37)}"
            resource = (ResourceType.TOPIC, prefix, PatternType.PREFIXED)
        elif number % 10 == 1:
            resource = (ResourceType.GROUP, f"group-{number}", PatternType.LITERAL)
        else:
            resource = (ResourceType.TOPIC, f"topic-{number // 2}", PatternType.LITERAL)
        operation = Operation.READ if number % 2 else Operation.WRITE
        bindings.append(acl(operation, *resource, principal=principal))
    return bindings
