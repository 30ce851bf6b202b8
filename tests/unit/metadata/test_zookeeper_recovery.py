"""Which of the writes that were under way when the connection broke have been made?"""

from __future__ import annotations

import pytest

from kavka.metadata.store import Check, Create, Delete, Op, SetData, Stat
from kavka.metadata.zookeeper_recovery import Found, Verdict, Write, judge, paths_to_read, results_of

MADE, AGAIN, UNKNOWN = Verdict.MADE, Verdict.AGAIN, Verdict.UNKNOWN
SESSION = 77
BEFORE = 100


def node(
    data: bytes | None = None, *, version: int = 0, made: int = BEFORE + 1, changed: int | None = None, owner: int = 0
) -> tuple[bytes | None, Stat]:
    return data, Stat(made, changed or made, made, 0, 0, version, 0, owner, len(data or b""), 0)


@pytest.mark.parametrize(
    ("writes", "found", "expected"),
    [
        # One write.
        ([[Create("/a", b"x")]], {"/a": node(b"x")}, [MADE]),
        ([[Create("/a", b"x")]], {"/a": None}, [AGAIN]),
        ([[Create("/a", b"x")]], {"/a": node(b"other")}, [AGAIN]),
        ([[Create("/a", b"x")]], {"/a": node(b"x", made=BEFORE)}, [AGAIN]),
        ([[Create("/a", b"x", ephemeral=True)]], {"/a": node(b"x", owner=SESSION)}, [MADE]),
        ([[Create("/a", b"x", ephemeral=True)]], {"/a": node(b"x", owner=78)}, [AGAIN]),
        ([[Create("/a", b"x")]], {"/a": node(b"x", owner=SESSION)}, [AGAIN]),
        ([[Create("/a-", sequential=True)]], {"/a-": None}, [AGAIN]),
        ([[SetData("/a", b"x", 4)]], {"/a": node(b"x", version=5, made=1, changed=101)}, [MADE]),
        ([[SetData("/a", b"x", 4)]], {"/a": node(b"x", version=6, made=1, changed=101)}, [AGAIN]),
        ([[SetData("/a", b"x", 4)]], {"/a": node(b"x", version=5, made=1, changed=99)}, [AGAIN]),
        ([[SetData("/a", b"x")]], {"/a": node(b"x", version=9, made=1, changed=101)}, [MADE]),
        ([[SetData("/a", b"x")]], {"/a": None}, [AGAIN]),
        ([[Delete("/a", 3)]], {"/a": None}, [MADE]),
        ([[Delete("/a", 3)]], {"/a": node(made=1)}, [AGAIN]),
        ([[Check("/e", 1)]], {}, [AGAIN]),
        # A multi is whole or not at all, and has one zxid.
        (
            [[Check("/e", 1), Create("/a", b"x"), SetData("/b", b"y", 0), Delete("/c")]],
            {"/a": node(b"x", made=105), "/b": node(b"y", version=1, made=1, changed=105), "/c": None},
            [MADE],
        ),
        (
            [[Create("/a", b"x"), SetData("/b", b"y", 0)]],
            {"/a": node(b"x", made=105), "/b": node(b"y", version=1, made=1, changed=106)},
            [AGAIN],
        ),
        ([[Create("/a"), SetData("/a", b"y", 0)]], {"/a": node(b"y", version=1, made=105)}, [MADE]),
        # Many: what was refused in the middle is asked for again, though a later one was made.
        ([[Create("/a", b"x")], [Create("/b")]], {"/a": node(b"theirs"), "/b": node()}, [AGAIN, MADE]),
        ([[Create("/a", b"x")], [Create("/b")]], {"/a": node(b"x"), "/b": None}, [MADE, AGAIN]),
        # One upon the other: the later could only be made after the earlier.
        (
            [[SetData("/a", b"1", 0)], [SetData("/a", b"2", 1)], [SetData("/a", b"3", 2)]],
            {"/a": node(b"3", version=3, made=1, changed=105)},
            [MADE, MADE, MADE],
        ),
        (
            [[SetData("/a", b"1", 0)], [SetData("/a", b"2", 1)], [SetData("/a", b"3", 2)]],
            {"/a": node(b"2", version=2, made=1, changed=105)},
            [MADE, MADE, AGAIN],
        ),
        ([[Create("/a", b"1")], [SetData("/a", b"2", 0)]], {"/a": node(b"2", version=1)}, [MADE, MADE]),
        ([[Create("/a", b"1")], [Delete("/a", 0)]], {"/a": None}, [MADE, MADE]),
        ([[Delete("/a")], [Create("/a", b"2")]], {"/a": node(b"2")}, [MADE, MADE]),
        # One upon the other, and nobody can tell.
        ([[Create("/a", b"1")], [SetData("/a", b"2")]], {"/a": node(b"2", version=4)}, [UNKNOWN, MADE]),
        (
            [[SetData("/a", b"1")], [SetData("/a", b"2")]],
            {"/a": node(b"2", version=4, made=1, changed=105)},
            [UNKNOWN, MADE],
        ),
    ],
)
def test_what_the_nodes_show(writes: list[list[Op]], found: Found, expected: list[Verdict]) -> None:
    assert judge([Write(ops, BEFORE) for ops in writes], found, SESSION) == expected


def test_the_answer_is_what_the_server_would_have_said() -> None:
    ops = [Check("/e", 1), Create("/a", b"x"), SetData("/b", b"y", 2), Delete("/c")]
    stat = node(b"y", version=3)[1]
    assert paths_to_read(ops) == ["/a", "/b", "/c"]
    assert results_of(ops, {"/a": node(b"x"), "/b": (b"y", stat), "/c": None}) == [None, "/a", stat, None]


def test_the_version_in_the_answer_is_the_writes_own_though_the_node_went_on() -> None:
    (result,) = results_of([SetData("/b", b"y", 2)], {"/b": node(b"z", version=7)})
    assert isinstance(result, Stat) and result.version == 3
