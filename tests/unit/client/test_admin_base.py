from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any

import pytest

from kavka.client.admin.aio import Admin
from kavka.client.admin.base import AdminBase, AdminError, as_list, gather
from kavka.client.admin_config import admin_config
from kavka.client.errors import Disconnected, KafkaTimeout
from kavka.common.errors import ErrorCode, KafkaError
from kavka.common.types import TopicPartition, by_topic


def admin(**settings: Any) -> AdminBase:
    defaults = {"bootstrap.servers": "x:1", "retry.backoff.ms": 1, "retry.backoff.max.ms": 2}
    return AdminBase(admin_config(defaults | settings, {}))


def each(
    attempt: Callable[[list[str]], Any], keys: str = "abc", timeout: float = 5.0, **settings: Any
) -> dict[str, Any]:
    async def run_attempt(remaining: list[str]) -> Any:
        return attempt(remaining)

    async def work() -> dict[str, Any]:
        return await admin(**settings)._each(list(keys), run_attempt, timeout)

    return asyncio.run(work())


def test_only_retriable_errors_are_retried() -> None:
    attempts: list[list[str]] = []

    def attempt(remaining: list[str]) -> Any:
        attempts.append(remaining)
        if len(attempts) == 1:
            return {"a": 1}, {
                "b": KafkaError(ErrorCode.NOT_CONTROLLER),
                "c": KafkaError(ErrorCode.COORDINATOR_NOT_AVAILABLE),
            }
        return {"b": 2, "c": 3}, {}

    assert each(attempt) == {"a": 1, "b": 2, "c": 3}
    assert attempts == [["a", "b", "c"], ["b", "c"]]


def test_error_carries_the_results_of_the_other_keys() -> None:
    failure = KafkaError(ErrorCode.TOPIC_ALREADY_EXISTS, "it is there")
    with pytest.raises(AdminError) as caught:
        each(lambda remaining: ({"a": 1, "c": 3}, {"b": failure}))
    assert caught.value.results == {"a": 1, "c": 3}
    assert caught.value.errors == {"b": failure}
    assert caught.value.code == ErrorCode.TOPIC_ALREADY_EXISTS
    assert str(caught.value) == "b: it is there"


def test_lost_connection_is_retried() -> None:
    attempts: list[int] = []

    def attempt(remaining: list[str]) -> Any:
        attempts.append(1)
        if len(attempts) < 3:
            raise Disconnected("connection lost")
        return dict.fromkeys(remaining, 0), {}

    assert each(attempt) == {"a": 0, "b": 0, "c": 0}


def test_retries_end_at_the_timeout_and_the_limit() -> None:
    def attempt(remaining: list[str]) -> Any:
        raise Disconnected("connection lost")

    with pytest.raises(AdminError) as caught:
        each(attempt, timeout=0.05)
    assert isinstance(caught.value.errors["a"], KafkaTimeout)
    assert "connection lost" in str(caught.value)
    with pytest.raises(AdminError) as caught:
        each(attempt, retries=2)
    assert isinstance(caught.value.errors["a"], Disconnected)


def test_hanging_attempt_times_out() -> None:
    async def hang(remaining: list[str]) -> Any:
        await asyncio.sleep(60)

    async def work() -> None:
        with pytest.raises(AdminError) as caught:
            await admin()._each(["a"], hang, 0.05)
        assert isinstance(caught.value.errors["a"], KafkaTimeout)

    asyncio.run(work())


def test_failed_broker_fails_only_its_keys() -> None:
    async def send(broker: int, keys: list[str]) -> Any:
        if broker == 2:
            raise Disconnected("connection lost")
        return dict.fromkeys(keys, broker), {}

    async def work() -> None:
        done, failed = await gather({1: ["a", "b"], 2: ["c"]}, send)
        assert done == {"a": 1, "b": 1}
        assert isinstance(failed["c"], Disconnected)

    asyncio.run(work())


def test_helpers_group_and_list_keys() -> None:
    assert by_topic([TopicPartition("a", 1), TopicPartition("b", 0), TopicPartition("a", 2)]) == {"a": [1, 2], "b": [0]}
    assert as_list("abc", str) == ["abc"]
    assert as_list(["abc", "d"], str) == ["abc", "d"]


@pytest.mark.parametrize("call", ["list_groups", "list_transactions", "describe_log_dirs", "describe_api_versions"])
def test_timeout_covers_the_first_metadata_request(call: str) -> None:
    async def work() -> None:
        async with Admin({"bootstrap.servers": "127.0.0.1:1", "request.timeout.ms": 50_000}) as client:
            started = time.monotonic()
            with pytest.raises(KafkaTimeout):
                await getattr(client, call)(timeout=0.1)
            assert time.monotonic() - started < 20

    asyncio.run(work())
