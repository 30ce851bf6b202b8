"""Plans of where partitions could go."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kavka.console.errors import Refused
from kavka.console.moves import parse_replicas, propose

NO_RACKS = dict.fromkeys(range(10), None)


def test_what_is_even_already_stays_where_it_is():
    current = {0: (0, 1), 1: (1, 2), 2: (2, 0)}
    assert propose(current, [0, 1, 2], NO_RACKS, 2) == current


def test_a_broker_that_is_not_chosen_hands_over_only_what_it_has():
    proposed = propose({0: (0, 1), 1: (1, 2), 2: (2, 0)}, [0, 1], NO_RACKS, 2)
    assert {p: set(r) for p, r in proposed.items()} == {0: {0, 1}, 1: {0, 1}, 2: {0, 1}}


def test_a_new_broker_gets_its_share():
    proposed = propose({p: (p % 2, 1 - p % 2) for p in range(6)}, [0, 1, 2], NO_RACKS, 2)
    assert Counter(b for r in proposed.values() for b in r) == {0: 4, 1: 4, 2: 4}
    assert Counter(r[0] for r in proposed.values()) == {0: 2, 1: 2, 2: 2}


def test_replicas_go_to_different_racks():
    racks = {0: "a", 1: "a", 2: "b", 3: "b"}
    proposed = propose({p: (0,) for p in range(8)}, [0, 1, 2, 3], racks, 2)
    assert all({racks[b] for b in replicas} == {"a", "b"} for replicas in proposed.values())


@given(
    st.lists(st.lists(st.integers(0, 5), min_size=1, max_size=3, unique=True), min_size=1, max_size=30),
    st.lists(st.integers(0, 5), min_size=1, max_size=6, unique=True),
    st.integers(1, 6),
)
def test_every_partition_has_as_many_different_brokers_of_those_chosen(current, brokers, replication):
    assignment = {number: tuple(replicas) for number, replicas in enumerate(current)}
    if replication > len(brokers):
        with pytest.raises(Refused, match="need as many brokers"):
            propose(assignment, brokers, NO_RACKS, replication)
        return
    proposed = propose(assignment, brokers, NO_RACKS, replication)
    assert proposed.keys() == assignment.keys()
    for replicas in proposed.values():
        assert len(set(replicas)) == len(replicas) == replication and set(replicas) <= set(brokers)


def test_no_broker_chosen_is_refused():
    with pytest.raises(Refused, match="choose brokers"):
        propose({0: (0,)}, [], {}, 1)


@pytest.mark.parametrize(
    ("key", "text", "line"),
    [("0", "", "no replica"), ("0", "1,x", "broker ids are expected"), ("a", "1", "broker ids"), ("0", "1 1", "twice")],
)
def test_a_list_of_brokers_that_is_none_is_refused(key, text, line):
    with pytest.raises(Refused, match=line):
        parse_replicas(key, text)


def test_a_list_of_brokers():
    assert parse_replicas("3", " 2, 1") == (3, (2, 1))
