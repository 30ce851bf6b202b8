"""The checker reports every kind of violation in a history that has one."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.chaos import replicas
from tests.chaos.checker import Read, check, check_group
from tests.chaos.history import History, Id, Violation, decode, encode
from tests.support.logs import build


def kinds(violations: list[Violation]) -> set[str]:
    return {violation.kind for violation in violations}


def valid_history(count: int = 10, producers: tuple[str, ...] = ("a", "b")) -> tuple[History, list[Read]]:
    """Return a history without violations, and the log of partition 0. The group has read all
    records."""
    history = History(1)
    log: list[Read] = []
    for counter in range(count):
        for producer in producers:
            offset = len(log)
            log.append((offset, encode(producer, 0, counter)))
            history.ack(0, offset, Id(producer, counter))
            history.read("r", 0, *log[-1])
    return history, log


def test_a_valid_history_has_no_violations() -> None:
    history, log = valid_history()
    assert check(history, {0: log}) == []
    assert check_group(history, {0: len(log)}) == []


def test_only_values_of_producers_are_decoded() -> None:
    assert decode(encode("ours", 3, 77), 3) == Id("ours", 77)
    assert decode(encode("ours", 3, 77), 2) is None
    assert decode(encode("ours", 3, 77)[:-1] + b"!", 3) is None
    assert decode(b"no such record", 3) is None
    assert decode(b"\xff:\xfe", 3) is None
    assert decode(None, 3) is None


def test_a_missing_acknowledged_record_at_the_end_is_lost() -> None:
    history, log = valid_history()
    assert kinds(check(history, {0: log[:-1]})) == {"lost"}


def test_an_acknowledged_record_replaced_by_another_record_is_lost() -> None:
    history, log = valid_history()
    log[4] = (4, encode("c", 0, 0))
    assert "lost" in kinds(check(history, {0: log}))


def test_a_missing_record_that_was_acknowledged_without_an_offset_is_lost() -> None:
    history, log = valid_history()
    history.ack(0, -1, Id("a", 10))
    assert kinds(check(history, {0: log})) == {"lost"}
    log.append((len(log), encode("a", 0, 10)))
    assert check(history, {0: log}) == []


def test_all_records_of_a_missing_partition_are_lost() -> None:
    history, _ = valid_history()
    assert "lost" in kinds(check(history, {}))


def test_a_record_stored_twice_is_doubled() -> None:
    history, log = valid_history()
    log.append((len(log), encode("a", 0, 9)))
    assert kinds(check(history, {0: log})) == {"doubled"}


def test_a_record_before_an_earlier_record_is_reordered() -> None:
    history = History(1)
    log = [(0, encode("a", 0, 1)), (1, encode("a", 0, 0)), (2, encode("a", 0, 2))]
    for offset, counter in ((0, 1), (1, 0), (2, 2)):
        history.ack(0, offset, Id("a", counter))
    assert kinds(check(history, {0: log})) == {"reordered"}


def test_unacknowledged_records_may_be_missing_or_stored() -> None:
    history, log = valid_history()
    history.fail(0, Id("a", 10), "timed out")
    log.append((len(log), encode("a", 0, 11)))
    assert check(history, {0: log}) == []


def test_an_acknowledged_record_at_another_offset_has_changed() -> None:
    history, log = valid_history()
    moved = [*log[:-2], (log[-2][0], log[-1][1]), (log[-1][0], log[-2][1])]
    assert kinds(check(history, {0: moved})) == {"changed"}


def test_an_offset_read_as_two_records_has_changed() -> None:
    history, log = valid_history()
    history.read("other", 0, 3, encode("c", 0, 5))
    assert kinds(check(history, {0: log})) == {"changed"}


def test_an_offset_acknowledged_for_two_records_has_changed() -> None:
    history, _ = valid_history()
    history.ack(0, 3, Id("c", 5))
    assert "changed" in kinds(history.violations)


def test_a_record_that_was_read_and_removed_has_changed() -> None:
    history, log = valid_history()
    history.read("r", 0, len(log), encode("a", 0, 10))
    assert kinds(check(history, {0: log})) == {"changed"}


def test_a_missing_offset_is_a_gap() -> None:
    history, log = valid_history()
    log.append((log[-1][0] + 2, encode("a", 0, 10)))
    assert kinds(check(history, {0: log})) == {"gap"}


def test_a_log_that_does_not_begin_at_0_has_a_gap() -> None:
    history = History(1)
    assert kinds(check(history, {0: [(1, encode("a", 0, 0))]})) == {"gap"}


def test_bytes_that_no_producer_sent_are_foreign() -> None:
    history, log = valid_history()
    log.append((len(log), b"invalid"))
    assert kinds(check(history, {0: log})) == {"foreign"}
    history.read("r", 0, 50, b"invalid")
    assert kinds(history.violations) == {"foreign"}


def test_a_record_in_the_wrong_partition_is_foreign() -> None:
    history = History(2)
    assert kinds(check(history, {1: [(0, encode("a", 0, 0))]})) == {"foreign"}


def test_an_offset_that_the_group_never_read_was_skipped() -> None:
    history, log = valid_history()
    history.group_read[0].discard(7)
    assert kinds(check_group(history, {0: len(log)})) == {"skipped"}


def test_a_commit_beyond_the_end_is_reported() -> None:
    history, log = valid_history()
    history.commit({0: len(log) + 1})
    assert kinds(check_group(history, {0: len(log)})) == {"committed"}


def test_a_member_that_starts_below_a_commit_was_rewound() -> None:
    history, log = valid_history()
    history.commit({0: 10})
    history.assigned("r", [0])
    history.read("r", 0, *log[10])
    assert history.violations == []
    history.assigned("r", [0])
    history.read("r", 0, *log[9])
    assert kinds(history.violations) == {"rewound"}


def test_many_violations_of_a_kind_are_summarised() -> None:
    history, _ = valid_history(1000)
    for offset in range(1000):
        history.read("other", 0, offset, encode("c", 0, offset))
    assert len(check(history, {0: []})) < 20


def test_the_longest_wait_is_the_wait_of_the_slowest_partition(monkeypatch: pytest.MonkeyPatch) -> None:
    history = History(2)
    now = 0.0
    monkeypatch.setattr("tests.chaos.history.time.monotonic", lambda: now)
    for step in range(100):
        now = 100 + step / 10
        history.ack(0, step, Id("a", step))
        if not 30 < step < 80:
            history.ack(1, step, Id("b", step))
    assert history.longest_wait(100, 110) == (pytest.approx(5.0), 1)
    assert history.longest_wait(100, 102) == (pytest.approx(0.1), 1)
    # Without acknowledgements the wait is the length of the interval.
    assert history.longest_wait(200, 230) == (30, 1)


def logs(*batches: list[bytes]) -> bytes:
    offset = 0
    data = b""
    for values in batches:
        data += bytes(build([(None, value) for value in values], base_offset=offset))
        offset += len(values)
    return data


def test_replicas_with_the_same_batches_are_equal_for_any_segment_boundaries(tmp_path: Path) -> None:
    first, second = logs([b"a", b"b"]), logs([b"a", b"b"], [b"c"])
    for name, segments in (("x", [second]), ("y", [first, second[len(first) :]])):
        folder = tmp_path / name / "t-0"
        folder.mkdir(parents=True)
        for number, segment in enumerate(segments):
            (folder / f"{number * 2:020}.log").write_bytes(segment)
        (folder / "leader-epoch-checkpoint").write_text("0\n0\n")
    (tmp_path / "x" / "t-0.abc-delete").mkdir()
    contents = {
        number: replicas.log_bytes(replicas.partition_folders([tmp_path / name], "t")[0])
        for number, name in enumerate("xy")
    }
    assert replicas.compare("t-0", contents) == []
    assert replicas.end_offset(contents[0]) == 3
    assert replicas.records(contents[0]) == [(0, b"a"), (1, b"b"), (2, b"c")]


@pytest.mark.parametrize(
    "other",
    [
        logs([b"a", b"b"]),
        logs([b"a", b"b"], [b"d"]),
        logs([b"a", b"b"], [b"c"], [b"d"]),
        logs([b"a", b"b"], [b"c"])[:-1],
        logs([b"a", b"b"], [b"c"]) + b"\x00",
        b"",
    ],
    ids=["shorter", "another record", "longer", "truncated", "extra bytes", "empty"],
)
def test_different_replicas_are_reported(other: bytes) -> None:
    assert kinds(replicas.compare("t-0", {0: logs([b"a", b"b"], [b"c"]), 1: other})) == {"replicas"}


def test_replicas_with_different_leader_epochs_are_reported() -> None:
    data = bytearray(logs([b"a"]))
    data[12:16] = (7).to_bytes(4, "big")
    assert kinds(replicas.compare("t-0", {0: logs([b"a"]), 1: bytes(data)})) == {"replicas"}


def test_records_that_librdkafka_sent_again_are_not_duplicates() -> None:
    def log(*batches: tuple[str, int]) -> bytes:
        data = b""
        for offset, (producer, epoch) in enumerate(batches):
            data += bytes(
                build(
                    [(None, encode(producer, 0, 0))],
                    base_offset=offset,
                    producer_id=7,
                    producer_epoch=epoch,
                    base_sequence=0,
                )
            )
        return data

    same_epoch, new_epoch = log(("rdkafka", 0), ("rdkafka", 0)), log(("rdkafka", 0), ("rdkafka", 1))
    assert replicas.resent(same_epoch) == set()
    assert replicas.resent(new_epoch) == {1}
    for data, producer, expected in (
        (same_epoch, "rdkafka", {"doubled"}),
        (new_epoch, "rdkafka", set()),
        (new_epoch, "ours", {"doubled"}),
    ):
        history = History(1)
        history.resent = {(0, offset) for offset in replicas.resent(data)}
        final = [(offset, encode(producer, 0, 0)) for offset, _ in replicas.records(data)]
        assert kinds(check(history, {0: final})) == expected
