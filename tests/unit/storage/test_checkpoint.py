from __future__ import annotations

import contextlib
import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kavka.common.types import TopicPartition
from kavka.storage.checkpoint import CheckpointError, OffsetCheckpoint, decode_offsets, encode_offsets

ORDERS = TopicPartition("orders", 0)


def test_the_file_is_kafkas_text_format(tmp_path):
    file = OffsetCheckpoint(tmp_path, "recovery-point-offset-checkpoint")
    file.write({ORDERS: 1234, TopicPartition("a.b-c_d", 11): 0})
    assert file.path.read_bytes() == b"0\n2\norders 0 1234\na.b-c_d 11 0\n"


def test_a_write_replaces_the_whole_file(tmp_path):
    file = OffsetCheckpoint(tmp_path, "x")
    file.write({ORDERS: 5, TopicPartition("t", 1): 6})
    file.write({ORDERS: 7})
    assert file.read() == {ORDERS: 7}
    assert os.listdir(tmp_path) == ["x"]


def test_a_missing_file_and_an_empty_file_have_no_entries(tmp_path):
    file = OffsetCheckpoint(tmp_path, "x")
    assert file.read() == {}
    file.path.write_bytes(b"")
    assert file.read() == {}


@pytest.mark.parametrize(
    "text",
    [
        b"1\n0\n",
        b"0\n",
        b"0\nmany\n",
        b"0\n2\norders 0 1\n",
        b"0\n1\norders 0 1\norders 1 1\n",
        b"0\n1\norders 0\n",
        b"0\n1\norders zero 1\n",
        b"0\n1\norders 0 1 2\n",
        b"\xff\xfe\x00",
    ],
)
def test_the_error_of_a_corrupt_file_names_the_file(tmp_path, text):
    file = OffsetCheckpoint(tmp_path, "recovery-point-offset-checkpoint")
    file.path.write_bytes(text)
    with pytest.raises(CheckpointError, match="recovery-point-offset-checkpoint"):
        file.read()


@given(
    st.dictionaries(
        st.builds(TopicPartition, st.from_regex(r"[a-zA-Z0-9._-]{1,20}", fullmatch=True), st.integers(0, 2**31 - 1)),
        st.integers(-1, 2**63 - 1),
    )
)
def test_any_offsets_are_decoded_as_encoded(offsets):
    assert decode_offsets(encode_offsets(offsets), "x") == offsets


@given(st.binary(max_size=200))
def test_any_bytes_give_offsets_or_a_checkpoint_error(data):
    with contextlib.suppress(CheckpointError):
        decode_offsets(data, "x")


@pytest.mark.parametrize("step", ["pwrite", "fsync", "replace"])
def test_a_failed_write_leaves_the_previous_contents(tmp_path, monkeypatch, step):
    file = OffsetCheckpoint(tmp_path, "x")
    file.write({ORDERS: 1})

    def fail(*_args):
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(os, step, fail)
    with pytest.raises(OSError):
        file.write({ORDERS: 2})
    assert file.read() == {ORDERS: 1}


def test_the_file_is_on_disk_before_it_is_renamed(tmp_path, monkeypatch):
    calls = []
    for name in ("fsync", "replace"):
        real = getattr(os, name)
        monkeypatch.setattr(os, name, lambda *a, _real=real, _name=name: (calls.append(_name), _real(*a)))
    OffsetCheckpoint(tmp_path, "x").write({})
    assert calls == ["fsync", "replace", "fsync"]
