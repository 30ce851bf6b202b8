from __future__ import annotations

import os
import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kavka.storage.offset_map import DictMap, OffsetMap, PackedMap, make_offset_map

MAKERS = {"dict": lambda: DictMap(10_000), "packed": lambda: PackedMap(10_000 * 25 * 2)}
keys = st.one_of(
    st.binary(max_size=20), st.sampled_from([b"", b"\x00", b"\x00\x00", b"a", b"a\x00", b"x" * 15, b"x" * 16])
)


@pytest.mark.parametrize("kind", MAKERS)
@given(entries=st.lists(keys))
def test_the_map_gives_the_last_offset_of_every_key(kind, entries):
    offset_map: OffsetMap = MAKERS[kind]()
    expected = {}
    for offset, key in enumerate(entries):
        assert offset_map.put_all([(key, offset)])
        expected[key] = offset
    assert offset_map.size == len(expected)
    for key, offset in expected.items():
        assert offset_map.get(key) == offset
    assert offset_map.get(b"a key that was never put") == -1


def test_a_packed_map_finds_all_keys_at_its_load_factor():
    offset_map = PackedMap(64 * 100 * 25)
    pairs = [(os.urandom(12), n) for n in range(offset_map.limit)]
    assert offset_map.put_all(pairs)
    assert offset_map.size == offset_map.limit == int(6400 * 0.9)
    assert all(offset_map.get(key) == offset for key, offset in pairs)
    assert all(offset_map.get(os.urandom(12)) == -1 for _ in range(1000))


@pytest.mark.parametrize("offset_map", [DictMap(5), PackedMap(64 * 25, 0.08)], ids=["dict", "packed"])
def test_a_full_map_accepts_only_keys_that_it_has(offset_map):
    assert offset_map.limit == 5
    assert offset_map.put_all([(b"%d" % n, n) for n in range(5)])
    assert offset_map.put_all([(b"3", 10)])
    assert not offset_map.put_all([(b"4", 11), (b"new", 12)])
    assert offset_map.get(b"3") == 10 and offset_map.get(b"4") == 11


@pytest.mark.parametrize("expected", [None, 20_000, 3_000])
def test_the_memory_of_a_map_stays_within_the_buffer_size(expected):
    buffer = 1 << 20
    tracemalloc.start()
    offset_map = make_offset_map(buffer, 0.9, expected)
    count = min(offset_map.limit, expected or offset_map.limit)
    for n in range(count):
        offset_map.put_all([(b"a key of some length %d" % n, (1 << 40) + n)])
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    # The figure includes allocations of threads from earlier tests. A table that is too large, or a
    # dict, would take several times the buffer.
    assert offset_map.size == count and peak <= buffer * 1.25


def test_few_keys_use_a_dict_and_many_the_packed_table():
    assert isinstance(make_offset_map(1 << 20, 0.9, 1000), DictMap)
    assert isinstance(make_offset_map(1 << 20, 0.9, 100_000), PackedMap)
    assert isinstance(make_offset_map(1 << 20, 0.9), PackedMap)
