"""Verdicts about writes that were pending when the connection broke."""

from __future__ import annotations

import pytest

from kavka.metadata.store import Check, Create, Delete, Op, SetData, Stat
from kavka.metadata.zookeeper_recovery import Nodes, Verdict, Write, judge, paths_to_read, results_of

APPLIED, RETRY, UNKNOWN = Verdict.APPLIED, Verdict.RETRY, Verdict.UNKNOWN
SESSION = 77
LAST_SEEN_ZXID = 100


def node(
    data: bytes | None = None,
    *,
    version: int = 0,
    created: int = LAST_SEEN_ZXID + 1,
    changed: int | None = None,
    owner: int = 0,
) -> tuple[bytes | None, Stat]:
    return data, Stat(created, changed or created, created, 0, 0, version, 0, owner, len(data or b""), 0)


@pytest.mark.parametrize(
    ("writes", "nodes", "expected"),
    [
        # A single write.
        ([[Create("/a", b"x")]], {"/a": node(b"x")}, [APPLIED]),
        ([[Create("/a", b"x")]], {"/a": None}, [RETRY]),
        ([[Create("/a", b"x")]], {"/a": node(b"other")}, [RETRY]),
        ([[Create("/a", b"x")]], {"/a": node(b"x", created=LAST_SEEN_ZXID)}, [RETRY]),
        ([[Create("/a", b"x", ephemeral=True)]], {"/a": node(b"x", owner=SESSION)}, [APPLIED]),
        ([[Create("/a", b"x", ephemeral=True)]], {"/a": node(b"x", owner=78)}, [RETRY]),
        ([[Create("/a", b"x")]], {"/a": node(b"x", owner=SESSION)}, [RETRY]),
        ([[Create("/a-", sequential=True)]], {"/a-": None}, [RETRY]),
        ([[SetData("/a", b"x", 4)]], {"/a": node(b"x", version=5, created=1, changed=101)}, [APPLIED]),
        ([[SetData("/a", b"x", 4)]], {"/a": node(b"x", version=6, created=1, changed=101)}, [RETRY]),
        ([[SetData("/a", b"x", 4)]], {"/a": node(b"x", version=5, created=1, changed=99)}, [RETRY]),
        ([[SetData("/a", b"x")]], {"/a": node(b"x", version=9, created=1, changed=101)}, [APPLIED]),
        ([[SetData("/a", b"x")]], {"/a": None}, [RETRY]),
        ([[Delete("/a", 3)]], {"/a": None}, [APPLIED]),
        ([[Delete("/a", 3)]], {"/a": node(created=1)}, [RETRY]),
        ([[Check("/e", 1)]], {}, [RETRY]),
        # A multi is atomic and has one zxid.
        (
            [[Check("/e", 1), Create("/a", b"x"), SetData("/b", b"y", 0), Delete("/c")]],
            {"/a": node(b"x", created=105), "/b": node(b"y", version=1, created=1, changed=105), "/c": None},
            [APPLIED],
        ),
        (
            [[Create("/a", b"x"), SetData("/b", b"y", 0)]],
            {"/a": node(b"x", created=105), "/b": node(b"y", version=1, created=1, changed=106)},
            [RETRY],
        ),
        ([[Create("/a"), SetData("/a", b"y", 0)]], {"/a": node(b"y", version=1, created=105)}, [APPLIED]),
        # Several writes: a rejected write is sent again even if a later write was applied.
        ([[Create("/a", b"x")], [Create("/b")]], {"/a": node(b"other"), "/b": node()}, [RETRY, APPLIED]),
        ([[Create("/a", b"x")], [Create("/b")]], {"/a": node(b"x"), "/b": None}, [APPLIED, RETRY]),
        # Dependent writes: the later write could only succeed after the earlier one.
        (
            [[SetData("/a", b"1", 0)], [SetData("/a", b"2", 1)], [SetData("/a", b"3", 2)]],
            {"/a": node(b"3", version=3, created=1, changed=105)},
            [APPLIED, APPLIED, APPLIED],
        ),
        (
            [[SetData("/a", b"1", 0)], [SetData("/a", b"2", 1)], [SetData("/a", b"3", 2)]],
            {"/a": node(b"2", version=2, created=1, changed=105)},
            [APPLIED, APPLIED, RETRY],
        ),
        ([[Create("/a", b"1")], [SetData("/a", b"2", 0)]], {"/a": node(b"2", version=1)}, [APPLIED, APPLIED]),
        ([[Create("/a", b"1")], [Delete("/a", 0)]], {"/a": None}, [APPLIED, APPLIED]),
        ([[Delete("/a")], [Create("/a", b"2")]], {"/a": node(b"2")}, [APPLIED, APPLIED]),
        # Overlapping writes with an unknown outcome.
        ([[Create("/a", b"1")], [SetData("/a", b"2")]], {"/a": node(b"2", version=4)}, [UNKNOWN, APPLIED]),
        (
            [[SetData("/a", b"1")], [SetData("/a", b"2")]],
            {"/a": node(b"2", version=4, created=1, changed=105)},
            [UNKNOWN, APPLIED],
        ),
    ],
)
def test_the_verdict_follows_from_the_current_znodes(
    writes: list[list[Op]], nodes: Nodes, expected: list[Verdict]
) -> None:
    assert judge([Write(ops, LAST_SEEN_ZXID) for ops in writes], nodes, SESSION) == expected


def test_results_match_server_response() -> None:
    ops = [Check("/e", 1), Create("/a", b"x"), SetData("/b", b"y", 2), Delete("/c")]
    stat = node(b"y", version=3)[1]
    assert paths_to_read(ops) == ["/a", "/b", "/c"]
    assert results_of(ops, {"/a": node(b"x"), "/b": (b"y", stat), "/c": None}) == [None, "/a", stat, None]


def test_result_has_version_of_the_write_after_later_changes() -> None:
    (result,) = results_of([SetData("/b", b"y", 2)], {"/b": node(b"z", version=7)})
    assert isinstance(result, Stat) and result.version == 3
