"""Every API with no right, with the rights that it needs, and with each of them denied: Kavka and
Apache Kafka give the same responses to the same requests.

`make test` compares the newest common versions of some APIs with Apache Kafka 3.9.1. `make
test-matrix` compares all versions, also with 4.3.0, which serves APIs that 3.9.1 does not have."""

from __future__ import annotations

from collections.abc import Iterator
from uuid import UUID

import pytest

from kavka.api import registry
from kavka.protocol.api_keys import ApiKey
from tests.support.access_brokers import SecuredBroker, secured_apache, secured_kavka
from tests.support.access_cases import CASES, SAMPLE, Case
from tests.support.access_matrix import common_versions, differences_of, prepare
from tests.support.apache import LAST_WITH_ZOOKEEPER, NEWEST
from tests.support.zookeeper import ZooKeeper

pytestmark = [pytest.mark.java, pytest.mark.slow, pytest.mark.timeout(300)]

# ApiVersions needs no right, and neither does the start of an authentication. Tokens are not
# available to clients of a PLAINTEXT listener.
WITHOUT_RIGHTS = {
    ApiKey.API_VERSIONS,
    ApiKey.SASL_HANDSHAKE,
    ApiKey.SASL_AUTHENTICATE,
    ApiKey.CREATE_DELEGATION_TOKEN,
    ApiKey.RENEW_DELEGATION_TOKEN,
    ApiKey.EXPIRE_DELEGATION_TOKEN,
    ApiKey.DESCRIBE_DELEGATION_TOKEN,
}


class Pair:
    """Kavka and Apache Kafka with the same topics, groups and transactions."""

    def __init__(self, kavka: SecuredBroker, apache: SecuredBroker) -> None:
        self.brokers = [kavka, apache]
        self.reference: str = apache.broker.version
        self.topic_ids: list[dict[str, UUID]] = [prepare(broker, self.reference) for broker in self.brokers]

    def check(self, case: Case, *, all_versions: bool) -> None:
        versions = common_versions(case, self.brokers)
        assert versions, f"Apache Kafka {self.reference} does not serve {case.key.name}"
        all_differences = differences_of(
            case, versions if all_versions else versions[-1:], self.brokers, self.topic_ids
        )
        assert not all_differences, "\n".join(all_differences)


@pytest.fixture(scope="module")
def zookeeper(java_parts: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ZooKeeper]:
    server = ZooKeeper(tmp_path_factory.mktemp("zookeeper"))
    yield server
    server.stop()


@pytest.fixture(scope="module")
def pair(zookeeper: ZooKeeper, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    folder = tmp_path_factory.mktemp("pair")
    with secured_kavka(folder / "kavka", zookeeper) as kavka, secured_apache(folder / "apache", zookeeper) as apache:
        yield Pair(kavka, apache)


@pytest.fixture(scope="module")
def newest_pair(zookeeper: ZooKeeper, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    folder = tmp_path_factory.mktemp("newest-pair")
    with (
        secured_kavka(folder / "kavka", zookeeper, chroot="newest") as kavka,
        secured_apache(folder / "apache", None) as apache,
    ):
        yield Pair(kavka, apache)


def test_every_api_has_a_case() -> None:
    assert {int(case.key) for case in CASES} >= set(registry.load()) - WITHOUT_RIGHTS


@pytest.mark.parametrize("case", [c for c in CASES if c.name in SAMPLE], ids=lambda case: case.name)
def test_rights_as_in_kafka(pair: Pair, case: Case) -> None:
    pair.check(case, all_versions=False)


@pytest.mark.matrix
@pytest.mark.parametrize("case", [c for c in CASES if c.only_on != NEWEST], ids=lambda case: case.name)
def test_rights_in_all_versions_of_kafka_39(pair: Pair, case: Case) -> None:
    pair.check(case, all_versions=True)


@pytest.mark.matrix
@pytest.mark.parametrize("case", [c for c in CASES if c.only_on != LAST_WITH_ZOOKEEPER], ids=lambda case: case.name)
def test_rights_in_all_versions_of_kafka_43(newest_pair: Pair, case: Case) -> None:
    newest_pair.check(case, all_versions=True)
