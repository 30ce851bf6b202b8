"""Patterns from clients: the matches, and the time that they take."""

from __future__ import annotations

import contextlib
import re
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kavka.common.regex import PatternError, compile_pattern


@pytest.mark.parametrize(
    ("pattern", "matching", "others"),
    [
        ("abc", ["abc"], ["", "ab", "abcd", "xabc"]),
        ("a.c", ["abc", "a-c"], ["ac", "a\nc"]),
        ("app-.*", ["app-", "app-1", "app-x-y"], ["app", "my-app-1"]),
        ("a|b|cd", ["a", "b", "cd"], ["c", "ab", ""]),
        ("(a|b)+c?", ["a", "abba", "bc"], ["", "c", "acc"]),
        ("[a-c_.-]+", ["a-b", "_.", "-"], ["", "d"]),
        ("[^a-c]", ["d", "^"], ["a", "dd"]),
        ("[]a]", ["]", "a"], ["b"]),
        (r"\d{2,3}", ["12", "123"], ["1", "1234"]),
        (r"x{2}", ["xx"], ["x", "xxx"]),
        (r"x{2,}", ["xx", "xxxxx"], ["x"]),
        (r"x{,2}", ["x{,2}"], ["xx"]),
        (r"\w+\.\w+", ["a.b", "a_1.c"], ["ab", "a-b.c"]),
        (r"\D\S\W", ["ax-"], ["1x-", "a -", "axb"]),
        (r"\Qa.b*\E+", ["a.b*", "a.b**"], ["axb*"]),
        (r"[[:alpha:]][[:digit:]]", ["a1"], ["1a", "ab"]),
        (r"[[:^digit:]]", ["a"], ["1"]),
        ("(?i)ab[c-d]", ["ABC", "abD"], ["abe"]),
        ("a(?i:b)c", ["abc", "aBc"], ["Abc", "abC"]),
        ("(?P<name>a)(?<other>b)", ["ab"], ["a"]),
        ("^ab$", ["ab"], ["a", "xab"]),
        ("a^b", [], ["ab", "a^b"]),
        (r"\Aab\z", ["ab"], ["b"]),
        (r"\x41\x{42}", ["AB"], ["ab"]),
        ("a*?b+?c??", ["b", "aabbc"], ["a"]),
        ("", [""], ["a"]),
        ("()*", [""], ["a"]),
        ("(a*)*b", ["b", "aab"], ["a"]),
        ("größe|日本", ["größe", "日本"], ["grosse"]),
    ],
)
def test_pattern_matches_whole_text(pattern: str, matching: list[str], others: list[str]) -> None:
    compiled = compile_pattern(pattern)
    assert [text for text in matching if not compiled.matches(text)] == []
    assert [text for text in others if compiled.matches(text)] == []


@pytest.mark.parametrize(
    "pattern",
    [
        *("(", ")", "a)", "[a", "[b-a]", "*a", "a**", "+", "(?=a)", "(?<n", r"\1", r"\y", "\\", "a{3,2}", "a{2000}"),
        *("[[:no:]]", "x" * 10_001, "((x{999}){999}){999}", r"\x{zz}", "(?P<a b>x)"),
    ],
)
def test_invalid_pattern_is_rejected_in_one_line(pattern: str) -> None:
    with pytest.raises(PatternError) as raised:
        compile_pattern(pattern)
    assert str(raised.value) and "\n" not in str(raised.value)


@pytest.mark.parametrize("pattern", ["(a*)*b", "(a|a)*b", "(a|aa)+b", "(.*.*.*.*.*)=", "(x+x+)+y", "((a+)+)+b"])
def test_backtracking_patterns_match_quickly(pattern: str) -> None:
    began = time.process_time()
    assert not compile_pattern(pattern).matches("a" * 249)
    assert not compile_pattern(pattern).matches("x" * 249)
    assert time.process_time() - began < 0.5


_atoms = st.sampled_from(["a", "b", ".", "[ab]", "[^a]", r"\d", "c", "1"])
_patterns = st.recursive(
    _atoms,
    lambda inner: st.one_of(
        st.tuples(inner, inner).map("".join),
        st.tuples(inner, inner).map(lambda pair: f"(?:{pair[0]}|{pair[1]})"),
        st.tuples(inner, st.sampled_from(["*", "+", "?", "{2}", "{0,2}", "{1,}"])).map(lambda x: f"(?:{x[0]}){x[1]}"),
    ),
    max_leaves=6,
)


@settings(max_examples=300, deadline=None)
@given(_patterns, st.lists(st.text("abc1-", max_size=6), min_size=1, max_size=5))
def test_matches_agree_with_python_re(pattern: str, texts: list[str]) -> None:
    compiled = compile_pattern(pattern)
    for text in texts:
        assert compiled.matches(text) == (re.fullmatch(pattern, text) is not None)


@pytest.mark.parametrize(
    ("pattern", "matching", "others"),
    [
        (r"\bfoo\b.*", ["foo", "foo-1"], ["foo_1", "foos"]),
        (r"foo\B.*", ["foos"], ["foo-1", "foo"]),
        (r"\pL+", ["abc", "größe"], ["a1"]),
        (r"\p{Lu}\P{Lu}", ["Aa", "A1"], ["AA"]),
        (r"\p{^Greek}", ["a"], ["α"]),
        (r"\p{Greek}+", ["αβ"], ["ab"]),
        ("(?i)straße-Ä", ["STRAßE-ä"], ["strasse-a"]),
        (r"\101\x{e9}", ["Aé"], ["Ae"]),
        ("(?s:.)(?-s:.)", ["\na"], ["a\n"]),
        ("(?m)^a$", ["a"], ["b"]),
        (r"[\d\pP]+", ["1-2"], ["a"]),
        ("[α-ω]", ["γ"], ["a", "Γ"]),
        ("a{,1}{", ["a{,1}{"], ["a"]),
    ],
)
def test_further_syntax(pattern: str, matching: list[str], others: list[str]) -> None:
    compiled = compile_pattern(pattern)
    assert [text for text in matching if not compiled.matches(text)] == []
    assert [text for text in others if compiled.matches(text)] == []


@pytest.mark.parametrize(
    "pattern",
    [
        r"\pX",
        r"\p{Klingon}",
        r"\p{",
        r"\Z",
        r"\8",
        "(?<=a)b",
        "(?<!a)b",
        "(?!a)",
        "(?x)",
        "(?i",
        "(?i-)",
        "a*+",
        "a{2}{3}",
    ],
)
def test_syntax_unknown_to_re2_is_rejected(pattern: str) -> None:
    with pytest.raises(PatternError):
        compile_pattern(pattern)


@pytest.mark.parametrize(
    "pattern",
    [
        "(((((){999}){999}){999}){999}){999}",
        "(a{0,1000}){0,19}",
        "(.{0,30}x){0,30}",
        "(a|b|c|d|e|f|g)*x.{500}",
        "|".join(f"{c}.*{d}.*{c}" for c in "abcdefghij" for d in "klmnopqrst"),
    ],
)
def test_expensive_patterns_match_many_names_in_bounded_time(pattern: str) -> None:
    names = [f"{'abcdefg'[i % 7]}{i * 7919:040d}-topic.{i}x" * 3 for i in range(1000)]
    began = time.process_time()
    with contextlib.suppress(PatternError):
        compile_pattern(pattern).select(names)
    assert time.process_time() - began < 2.0


def test_matching_many_names_is_fast() -> None:
    names = [f"orders.{i % 40}.eu-{i}" for i in range(20_000)]
    began = time.process_time()
    assert len(compile_pattern(r"orders\.[0-9]+\.eu-.*7").select(names)) == 2_000
    assert time.process_time() - began < 1.0
