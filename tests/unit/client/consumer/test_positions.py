"""Lookups of missing positions, and validation of positions after a change of leader."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from kavka.client.consumer.errors import LogTruncation, NoOffsetForPartition, OffsetOutOfRange
from kavka.client.consumer.offsets import EARLIEST, LATEST, EpochEnd, OffsetResult
from kavka.client.consumer.positions import Positions, ResetPolicy
from kavka.client.consumer.subscription import PartitionState, Subscriptions
from kavka.client.consumer_config import consumer_config
from kavka.client.types import OffsetAndMetadata
from kavka.common.errors import ErrorCode, KafkaError
from kavka.common.types import TopicPartition as TP
from tests.unit.client.consumer.fakes import FakeCluster


class Setup:
    """`commits`, `times` and `ends` are the responses of the coordinator and the leaders."""

    def __init__(self, policy: str = "latest", partitions: int = 1, group: str | None = "g") -> None:
        config = consumer_config({"bootstrap.servers": "h:1", "retry.backoff.ms": 1, "auto.offset.reset": policy}, {})
        self.cluster = FakeCluster(partitions)
        self.subscriptions = Subscriptions()
        self.group_id = group
        self.commits: dict[TP, OffsetAndMetadata] = {}
        self.commit_failures: list[KafkaError] = []
        self.times: dict[tuple[TP, int], OffsetResult] = {}
        self.ends: dict[TP, EpochEnd | None] = {}
        self.requested_epochs: list[dict[TP, int]] = []
        self.errors: list[BaseException] = []
        self.new_positions = 0
        self.positions = Positions(
            config,
            self.cluster,  # type: ignore[arg-type]
            self.subscriptions,
            self,  # type: ignore[arg-type]
            self,  # type: ignore[arg-type]
            self._run_in_poll,
            self.errors.append,
            self._on_position,
        )
        self.subscriptions.assign([TP("t", p) for p in range(partitions)])
        self.before_poll_task: Callable[[], None] = lambda: None

    def _on_position(self) -> None:
        self.new_positions += 1

    async def _run_in_poll(self, work: Callable[[], Awaitable[None]]) -> None:
        self.before_poll_task()
        await work()

    async def committed(self, partitions: Any, deadline: float) -> Any:
        await asyncio.sleep(0)
        if self.commit_failures:
            raise self.commit_failures.pop()
        return {tp: self.commits.get(tp) for tp in partitions}

    async def try_once(self, times: Any, results: dict[TP, OffsetResult], deadline: float) -> None:
        await asyncio.sleep(0)
        for tp, timestamp in times.items():
            if (tp, timestamp) in self.times:
                results[tp] = self.times[tp, timestamp]

    async def epoch_ends(self, epochs: dict[TP, int], deadline: float) -> Any:
        self.requested_epochs.append(dict(epochs))
        await asyncio.sleep(0)
        return {tp: self.ends[tp] for tp in epochs if tp in self.ends}

    @property
    def state(self) -> PartitionState:
        return self.subscriptions.partitions[TP("t", 0)]

    async def wait(self) -> None:
        await self.positions.wait(2)


A = TP("t", 0)


def run(test: Callable[[], Awaitable[None]]) -> None:
    asyncio.run(test())  # type: ignore[arg-type]


def test_committed_offset_is_the_start_position() -> None:
    async def main() -> None:
        setup = Setup()
        setup.commits[A] = OffsetAndMetadata(42, "", 5)
        await setup.wait()
        assert (setup.state.position, setup.state.epoch, setup.state.next_offset) == (42, 5, 42)
        assert setup.new_positions and not setup.state.validating

    run(main)


@pytest.mark.parametrize(("policy", "timestamp"), [("earliest", EARLIEST), ("latest", LATEST)])
def test_reset_policy_applies_without_a_committed_offset(policy: str, timestamp: int) -> None:
    async def main() -> None:
        setup = Setup(policy)
        setup.times[A, timestamp] = OffsetResult(7, -1, 5)
        await setup.wait()
        assert setup.state.position == 7

    run(main)


def test_no_commits_are_fetched_without_a_group() -> None:
    async def main() -> None:
        setup = Setup("earliest", group=None)
        setup.commits[A] = OffsetAndMetadata(42)
        setup.times[A, EARLIEST] = OffsetResult(0)
        await setup.wait()
        assert setup.state.position == 0

    run(main)


def test_reset_by_duration_starts_at_the_end_if_all_records_are_older(monkeypatch: Any) -> None:
    policy = ResetPolicy("by_duration:P1DT2H3M4.5S")
    assert abs(policy.time() - (time.time() * 1000 - 93_784_500)) < 5000

    async def main() -> None:
        setup = Setup("by_duration:PT1H")
        monkeypatch.setattr(ResetPolicy, "time", lambda self: 1234)
        setup.times[A, 1234] = OffsetResult(-1)
        setup.times[A, LATEST] = OffsetResult(99)
        await setup.wait()
        assert setup.state.position == 99

    run(main)


def test_missing_offset_is_an_error_without_a_policy() -> None:
    async def main() -> None:
        setup = Setup("none", 2)
        setup.commits[TP("t", 1)] = OffsetAndMetadata(3)
        await setup.wait()
        assert [type(error) for error in setup.errors] == [NoOffsetForPartition]
        assert setup.errors[0].partitions == {A}  # type: ignore[attr-defined]
        assert setup.subscriptions.partitions[TP("t", 1)].position == 3

    run(main)


def test_retriable_errors_are_retried_and_others_reported() -> None:
    async def main() -> None:
        setup = Setup()
        setup.commits[A] = OffsetAndMetadata(1)
        setup.commit_failures = [KafkaError(ErrorCode.COORDINATOR_NOT_AVAILABLE)] * 2
        await setup.wait()
        assert setup.state.position == 1 and not setup.errors
        setup.state.seek_to_time(None)
        setup.commit_failures = [KafkaError(ErrorCode.GROUP_AUTHORIZATION_FAILED)]
        await setup.wait()
        assert setup.state.position < 0 and len(setup.errors) == 1

    run(main)


def test_seek_during_a_lookup_wins() -> None:
    async def main() -> None:
        setup = Setup()
        setup.commits[A] = OffsetAndMetadata(42)
        setup.positions.start()
        setup.state.seek(5)
        await setup.wait()
        assert setup.state.position == 5

    run(main)


def test_offset_out_of_range_applies_the_policy() -> None:
    setup = Setup("earliest")
    setup.state.seek(10)
    setup.positions.reset(setup.state)
    assert (setup.state.position, setup.state.reset) == (-1, EARLIEST)
    strict = Setup("none")
    strict.state.seek(10)
    with pytest.raises(OffsetOutOfRange) as caught:
        strict.positions.reset(strict.state)
    assert caught.value.offsets == {A: 10}


# --- changes of the leader


async def reading(setup: Setup, position: int, fetched: int, epoch: int = 5) -> None:
    """Set the state after records before the offset `fetched` were fetched, and records before
    `position` were returned."""
    state = setup.state
    state.seek(position, epoch)
    setup.positions.on_metadata()
    state.next_offset, state.next_epoch = fetched, epoch
    assert not state.validating


async def change_leader(setup: Setup, epoch: int = 6) -> None:
    setup.cluster.move(0, 2, epoch)
    setup.positions.on_metadata()
    assert setup.state.validating
    for _ in range(20):
        await asyncio.sleep(0.002)


def test_new_leader_with_all_fetched_records_is_valid() -> None:
    async def main() -> None:
        setup = Setup()
        await reading(setup, 10, 20)
        setup.ends[A] = EpochEnd(5, 25)
        await change_leader(setup)
        assert setup.requested_epochs == [{A: 5}]
        assert (setup.state.position, setup.state.next_offset, setup.state.validating) == (10, 20, False)

    run(main)


def test_truncated_fetched_records_are_fetched_again() -> None:
    async def main() -> None:
        setup = Setup()
        await reading(setup, 10, 20)
        setup.ends[A] = EpochEnd(5, 15)
        version = setup.state.version
        await change_leader(setup)
        assert (setup.state.position, setup.state.next_offset) == (10, 10)
        assert setup.state.version > version

    run(main)


def test_truncated_read_records_move_the_position_back() -> None:
    async def main() -> None:
        setup = Setup()
        await reading(setup, 10, 20)
        setup.ends[A] = EpochEnd(4, 8)
        await change_leader(setup)
        assert (setup.state.position, setup.state.epoch) == (8, 4)
        assert not setup.errors

    run(main)


def test_truncation_below_the_position_is_an_error_without_a_policy() -> None:
    async def main() -> None:
        setup = Setup("none")
        await reading(setup, 10, 10)
        setup.ends[A] = EpochEnd(4, 8)
        await change_leader(setup)
        (error,) = setup.errors
        assert isinstance(error, LogTruncation)
        assert (error.offsets, error.diverging) == ({A: 10}, {A: 8})

    run(main)


def test_unknown_epoch_at_the_leader_resets_the_position() -> None:
    async def main() -> None:
        setup = Setup("earliest")
        await reading(setup, 10, 10)
        setup.ends[A] = EpochEnd(-1, -1)
        setup.times[A, EARLIEST] = OffsetResult(3)
        await change_leader(setup)
        await setup.wait()
        assert setup.state.position == 3

    run(main)


def test_position_is_valid_if_the_leader_does_not_support_epochs() -> None:
    async def main() -> None:
        setup = Setup()
        await reading(setup, 10, 20)
        setup.ends[A] = None
        await change_leader(setup)
        assert (setup.state.next_offset, setup.state.validating) == (20, False)

    run(main)


def test_seek_before_the_poll_task_wins() -> None:
    async def main() -> None:
        setup = Setup()
        await reading(setup, 10, 20)
        setup.ends[A] = EpochEnd(4, 8)
        setup.before_poll_task = lambda: setup.state.seek(1)
        await change_leader(setup)
        assert setup.state.position == 1

    run(main)


def test_position_without_an_epoch_is_not_validated() -> None:
    async def main() -> None:
        setup = Setup()
        await reading(setup, 10, 20, epoch=-1)
        setup.cluster.move(0, 2, 6)
        setup.positions.on_metadata()
        assert not setup.state.validating

    run(main)
