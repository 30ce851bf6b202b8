"""Fixtures of the integration tests: the broker under test, clients, and tools. A test whose
external program is missing is skipped with a visible reason."""

from __future__ import annotations

import os
import sys
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
if str(ROOT) not in sys.path:
    sys.path.insert(0, str(ROOT))

from kavka import Consumer  # noqa: E402
from tests.support import jars, targets  # noqa: E402
from tests.support.java_client import JavaClient  # noqa: E402
from tests.support.missing import need_command, skip_loudly  # noqa: E402
from tests.support.our_consumer import group_overrides  # noqa: E402
from tests.support.registry import Registry  # noqa: E402
from tests.support.tools import ApacheTools  # noqa: E402

# pytest accepts `--target` only if this folder is on its command line. The variable always works.
TARGETS = os.environ.get("KAVKA_TEST_TARGET", targets.KAVKA)
CLASSIC_GROUPS_ONLY = (targets.APACHE_39,)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--target",
        default=TARGETS,
        help=f"broker(s) to run the client tests against, separated by commas: {', '.join(targets.NAMES)}",
    )


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "target_name" in metafunc.fixturenames:
        names = metafunc.config.getoption("--target", TARGETS).split(",")
        metafunc.parametrize("target_name", names, scope="module")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselect tests of the consumer group protocol (KIP-848) on brokers without it: Kafka 3.9 with
    ZooKeeper."""
    deselected = [
        item for item in items if item.get_closest_marker("new_groups") and _target_of(item) in CLASSIC_GROUPS_ONLY
    ]
    if deselected:
        items[:] = [item for item in items if item not in deselected]
        config.hook.pytest_deselected(items=deselected)


def _target_of(item: pytest.Item) -> str | None:
    callspec = getattr(item, "callspec", None)
    return None if callspec is None else callspec.params.get("target_name")


@pytest.fixture(params=["classic", pytest.param("consumer", marks=pytest.mark.new_groups)])
def protocol(request: pytest.FixtureRequest) -> str:
    """The group protocol of a consumer."""
    return str(request.param)


@pytest.fixture(scope="session")
def need() -> Callable[..., str]:
    return need_command


@pytest.fixture(scope="session")
def java_parts() -> None:
    """Skip the test with a visible reason if Java or a class path is missing."""
    try:
        for name in jars.CLASS_PATHS:
            jars.class_path(name)
    except jars.JavaMissing as error:
        skip_loudly(str(error))


@pytest.fixture(scope="module")
def target(target_name: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[targets.Target]:
    """The broker under test, started once per module. Each test uses a separate topic."""
    if target_name != targets.KAVKA:
        try:
            jars.class_path("server-4.3.0")
        except jars.JavaMissing as error:
            skip_loudly(str(error))
    broker = targets.start_target(target_name, tmp_path_factory.mktemp(target_name))
    try:
        yield broker
        assert broker.process.running(), f"the broker ended: {broker.process.log_tail()}"
    finally:
        broker.close()


@pytest.fixture(scope="module", params=[targets.KAVKA, targets.APACHE])
def either(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[targets.Target]:
    """Kavka, then Apache Kafka, for tools that must behave the same on both. The initial rebalance
    of a group is not delayed."""
    if request.param != targets.KAVKA:
        request.getfixturevalue("java_parts")
    overrides = {
        "group.initial.rebalance.delay.ms": 0,
        "offsets.topic.num.partitions": 1,
        "transaction.state.log.num.partitions": 1,
    }
    broker = targets.start_target(request.param, tmp_path_factory.mktemp(f"either-{request.param}"), overrides)
    try:
        yield broker
    finally:
        broker.close()


@pytest.fixture(scope="module")
def servers(target_name: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Addresses of a broker for this module. The initial rebalance of a group is not delayed."""
    broker = targets.start_target(target_name, tmp_path_factory.mktemp(target_name), group_overrides(target_name))
    try:
        yield broker.bootstrap_servers
        assert broker.process.running(), f"the broker ended: {broker.process.log_tail()}"
    finally:
        broker.close()


@pytest.fixture
def make(servers: str) -> Iterator[Callable[..., Consumer]]:
    """Return a function that creates consumers of `servers`. They are closed after the test."""
    consumers: list[Consumer] = []

    def create(**settings: Any) -> Consumer:
        consumer = Consumer(bootstrap_servers=servers, **settings)
        consumers.append(consumer)
        return consumer

    yield create
    for consumer in consumers:
        consumer.close(5)


@pytest.fixture
def group() -> str:
    return f"g-{uuid.uuid4().hex[:8]}"


@pytest.fixture(scope="session")
def apache_tools(java_parts: None) -> Iterator[ApacheTools]:
    """The tools of Apache Kafka 4.3. They work with both brokers."""
    with ApacheTools("4.3.0") as tools:
        yield tools


@pytest.fixture
def topic() -> str:
    return f"t-{uuid.uuid4().hex[:12]}"


@pytest.fixture(scope="module", params=["3.9.1", "4.3.0"])
def java_version(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def java(java_parts: None, java_version: str, target: targets.Target) -> Iterator[JavaClient]:
    with JavaClient(java_version, target.bootstrap_servers) as client:
        yield client


@pytest.fixture(scope="session")
def registry(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Registry]:
    """A schema registry, shared by all tests of a run. Each test uses separate subjects."""
    try:
        jars.apicurio_home()
    except jars.JavaMissing as error:
        skip_loudly(str(error))
    with Registry(tmp_path_factory.mktemp("registry")) as registry:
        yield registry


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """A local Spark session with two cores and `format("kavka")`, shared by all tests of a run."""
    need_command("java")
    from tests.support.spark import start_session

    session = start_session(tmp_path_factory.mktemp("spark"))
    yield session
    session.stop()
