"""Fixtures of the tests with real parts: the broker under test, the Java client, loud skips."""

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
from tests.support.tools import ApacheTools  # noqa: E402

# The option is only known to runs that name this folder; the variable works for all.
TARGETS = os.environ.get("KAVKA_TEST_TARGET", targets.KAVKA)
OLD_GROUPS = (targets.APACHE_39,)


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
    """With ZooKeeper, Kafka 3.9 has no groups of the new protocol: there is nothing to test."""
    left_out = [item for item in items if item.get_closest_marker("new_groups") and _target_of(item) in OLD_GROUPS]
    if left_out:
        items[:] = [item for item in items if item not in left_out]
        config.hook.pytest_deselected(items=left_out)


def _target_of(item: pytest.Item) -> str | None:
    call = getattr(item, "callspec", None)
    return None if call is None else call.params.get("target_name")


@pytest.fixture(params=["classic", pytest.param("consumer", marks=pytest.mark.new_groups)])
def protocol(request: pytest.FixtureRequest) -> str:
    """Of a group."""
    return str(request.param)


@pytest.fixture(scope="session")
def need() -> Callable[..., str]:
    return need_command


@pytest.fixture(scope="session")
def java_parts() -> None:
    """Java and every class path, or a loud skip."""
    try:
        for name in jars.CLASS_PATHS:
            jars.class_path(name)
    except jars.JavaMissing as error:
        skip_loudly(str(error))


@pytest.fixture(scope="module")
def target(target_name: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[targets.Target]:
    """One broker per module; each test uses its own topic. No module sees data of another."""
    if target_name != targets.KAVKA:
        try:
            jars.class_path("server-4.3.0")
        except jars.JavaMissing as error:
            skip_loudly(str(error))
    broker = targets.start_target(target_name, tmp_path_factory.mktemp(target_name))
    try:
        yield broker
        assert broker.process.running(), f"the broker has ended: {broker.process.log_tail()}"
    finally:
        broker.close()


@pytest.fixture(scope="module", params=[targets.KAVKA, targets.APACHE])
def either(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[targets.Target]:
    """Kavka and Apache Kafka in turn, for tools that must do the same on both; groups begin at
    once."""
    if request.param != targets.KAVKA:
        request.getfixturevalue("java_parts")
    quick = {
        "group.initial.rebalance.delay.ms": 0,
        "offsets.topic.num.partitions": 1,
        "transaction.state.log.num.partitions": 1,
    }
    broker = targets.start_target(request.param, tmp_path_factory.mktemp(f"either-{request.param}"), quick)
    try:
        yield broker
    finally:
        broker.close()


@pytest.fixture(scope="module")
def servers(target_name: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A broker of the module's own, whose groups do not wait for more members."""
    broker = targets.start_target(target_name, tmp_path_factory.mktemp(target_name), group_overrides(target_name))
    try:
        yield broker.bootstrap_servers
        assert broker.process.running(), f"the broker has ended: {broker.process.log_tail()}"
    finally:
        broker.close()


@pytest.fixture
def make(servers: str) -> Iterator[Callable[..., Consumer]]:
    """Consumers of `servers` that are closed at the end of the test."""
    made: list[Consumer] = []

    def create(**settings: Any) -> Consumer:
        consumer = Consumer(bootstrap_servers=servers, **settings)
        made.append(consumer)
        return consumer

    yield create
    for consumer in made:
        consumer.close(5)


@pytest.fixture
def group() -> str:
    return f"g-{uuid.uuid4().hex[:8]}"


@pytest.fixture(scope="session")
def apache_tools(java_parts: None) -> Iterator[ApacheTools]:
    """Apache's tools of 4.3, which know both brokers."""
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
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """A Spark session that knows `format("kavka")`: local, two cores, one for all the tests of a
    session."""
    need_command("java")
    from tests.support.spark import start_session

    session = start_session(tmp_path_factory.mktemp("spark"))
    yield session
    session.stop()
