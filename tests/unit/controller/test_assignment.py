from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kavka.common.errors import ErrorCode, KafkaError
from kavka.controller.assignment import alternate_racks, assign

FIVE = dict.fromkeys(range(5))


def test_the_layout_of_ten_partitions_on_five_brokers_is_kafkas() -> None:
    """The example in the comment of Kafka's AdminUtils, with index and shift fixed at 0."""
    assert assign(FIVE, 10, 3, fixed_start=0) == {
        0: (0, 1, 2),
        1: (1, 2, 3),
        2: (2, 3, 4),
        3: (3, 4, 0),
        4: (4, 0, 1),
        5: (0, 2, 3),
        6: (1, 3, 4),
        7: (2, 4, 0),
        8: (3, 0, 1),
        9: (4, 1, 2),
    }


def test_the_layout_over_three_racks_is_kafkas() -> None:
    racks: dict[int, str | None] = {0: "rack1", 1: "rack3", 2: "rack3", 3: "rack2", 4: "rack2", 5: "rack1"}
    assert alternate_racks({k: v for k, v in racks.items() if v}) == [0, 3, 1, 5, 4, 2]
    assert assign(racks, 7, 3, fixed_start=0) == {
        0: (0, 3, 1),
        1: (3, 1, 5),
        2: (1, 5, 4),
        3: (5, 4, 2),
        4: (4, 2, 0),
        5: (2, 0, 3),
        6: (0, 4, 2),
    }


def test_added_partitions_continue_the_assignment_of_the_topic() -> None:
    complete = assign(FIVE, 10, 3, fixed_start=2)
    added = assign(FIVE, 4, 3, fixed_start=2, first_partition=6)
    # The shift restarts, so only the leaders must be the same.
    assert {p: r[0] for p, r in added.items()} == {p: complete[p][0] for p in range(6, 10)}


@given(st.sets(st.integers(0, 50), min_size=1, max_size=8), st.integers(1, 40), st.data())
def test_replicas_are_on_different_brokers_and_leaders_are_balanced(
    brokers: set[int], partitions: int, data: st.DataObject
) -> None:
    factor = data.draw(st.integers(1, len(brokers)))
    layout = assign(dict.fromkeys(brokers), partitions, factor)
    assert list(layout) == list(range(partitions))
    for replicas in layout.values():
        assert len(set(replicas)) == len(replicas) == factor
        assert set(replicas) <= brokers
    led = Counter(replicas[0] for replicas in layout.values())
    assert max(led.values()) - min(led[b] for b in brokers) <= 1


@given(st.dictionaries(st.integers(0, 20), st.sampled_from("abc"), min_size=1, max_size=9), st.data())
def test_no_rack_has_two_replicas_before_every_rack_has_one(racks: dict[int, str], data: st.DataObject) -> None:
    factor = data.draw(st.integers(1, len(racks)))
    for replicas in assign(dict(racks), 12, factor).values():
        assert len(set(replicas)) == factor
        assert len({racks[b] for b in replicas}) == min(factor, len(set(racks.values())))


@pytest.mark.parametrize(
    ("partitions", "factor", "code"),
    [
        (0, 1, ErrorCode.INVALID_PARTITIONS),
        (-5, 1, ErrorCode.INVALID_PARTITIONS),
        (1, 0, ErrorCode.INVALID_REPLICATION_FACTOR),
        (1, 6, ErrorCode.INVALID_REPLICATION_FACTOR),
    ],
)
def test_impossible_assignments_are_refused(partitions: int, factor: int, code: ErrorCode) -> None:
    with pytest.raises(KafkaError) as raised:
        assign(FIVE, partitions, factor)
    assert raised.value.code is code


def test_brokers_with_and_without_racks_are_refused() -> None:
    with pytest.raises(KafkaError, match="without a rack: 1"):
        assign({0: "a", 1: None}, 1, 1)


GOLDEN = json.loads((Path(__file__).parents[2] / "golden" / "assignments-3.9.1.json").read_text())


def test_with_the_same_start_every_layout_is_kafkas() -> None:
    """Written by AdminUtils of 3.9.1: brokers, racks, factor, start, first partition, layout."""
    assert len(GOLDEN) == 126
    for brokers, racks, factor, start, first, layout in GOLDEN:
        rack_by_broker = dict(zip(brokers, racks or [None] * len(brokers), strict=True))
        actual = assign(rack_by_broker, len(layout), factor, fixed_start=start, first_partition=first)
        assert actual == {first + n: tuple(replicas) for n, replicas in enumerate(layout)}, (brokers, racks, factor)
