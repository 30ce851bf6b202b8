"""Reassignment plans."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kavka.console.errors import Refused
from kavka.console.moves import parse_replicas, propose

NO_RACKS = dict.fromkeys(range(10), None)


def test_balanced_assignment_is_unchanged():
    current = {0: (0, 1), 1: (1, 2), 2: (2, 0)}
    assert propose(current, [0, 1, 2], NO_RACKS, 2) == current


def test_only_replicas_of_unselected_broker_are_moved():
    proposed = propose({0: (0, 1), 1: (1, 2), 2: (2, 0)}, [0, 1], NO_RACKS, 2)
    assert {p: set(r) for p, r in proposed.items()} == {0: {0, 1}, 1: {0, 1}, 2: {0, 1}}


def test_new_broker_gets_its_share():
    proposed = propose({p: (p % 2, 1 - p % 2) for p in range(6)}, [0, 1, 2], NO_RACKS, 2)
    assert Counter(b for r in proposed.values() for b in r) == {0: 4, 1: 4, 2: 4}
    assert Counter(r[0] for r in proposed.values()) == {0: 2, 1: 2, 2: 2}


def test_replicas_are_placed_in_different_racks():
    racks = {0: "a", 1: "a", 2: "b", 3: "b"}
    proposed = propose({p: (0,) for p in range(8)}, [0, 1, 2, 3], racks, 2)
    assert all({racks[b] for b in replicas} == {"a", "b"} for replicas in proposed.values())


@given(
    st.lists(st.lists(st.integers(0, 5), min_size=1, max_size=3, unique=True), min_size=1, max_size=30),
    st.lists(st.integers(0, 5), min_size=1, max_size=6, unique=True),
    st.integers(1, 6),
)
def test_every_partition_has_distinct_selected_brokers(current, brokers, replication):
    assignment = {number: tuple(replicas) for number, replicas in enumerate(current)}
    if replication > len(brokers):
        with pytest.raises(Refused, match="need as many brokers"):
            propose(assignment, brokers, NO_RACKS, replication)
        return
    proposed = propose(assignment, brokers, NO_RACKS, replication)
    assert proposed.keys() == assignment.keys()
    for replicas in proposed.values():
        assert len(set(replicas)) == len(replicas) == replication and set(replicas) <= set(brokers)


def test_empty_selection_is_rejected():
    with pytest.raises(Refused, match="select at least one broker"):
        propose({0: (0,)}, [], {}, 1)


@pytest.mark.parametrize(
    ("key", "text", "message"),
    [
        ("0", "", "no replica"),
        ("0", "1,x", "expected broker ids"),
        ("a", "1", "expected broker ids"),
        ("0", "1 1", "two replicas on a broker"),
    ],
)
def test_invalid_list_of_brokers_is_rejected(key, text, message):
    with pytest.raises(Refused, match=message):
        parse_replicas(key, text)


def test_list_of_brokers_is_parsed():
    assert parse_replicas("3", " 2, 1") == (3, (2, 1))
