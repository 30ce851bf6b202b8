from __future__ import annotations

import pytest

from kavka.cli.zookeeper_shell import _date_text, _permissions, _split, _UsageError, _Words


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("ls /", ["ls", "/"]),
        ("  get   -s\t/a ", ["get", "-s", "/a"]),
        ('set /a "two words"', ["set", "/a", "two words"]),
        ("set /a 'it is \"so\"'", ["set", "/a", 'it is "so"']),
        ('set /a {"version":1,"x":[1,2]}', ["set", "/a", '{"version":1,"x":[1,2]}']),
        ('set /a ""', ["set", "/a", '""']),
    ],
)
def test_line_is_split_into_words_and_quoted_words_are_joined(line: str, words: list[str]) -> None:
    assert _split(line) == words


def test_missing_closing_quote_is_rejected() -> None:
    with pytest.raises(ValueError, match="missing closing quote"):
        _split('set /a "two words')


def test_flags_values_and_paths_are_parsed() -> None:
    words = _Words(["-sv", "/a", "data"])
    with pytest.raises(_UsageError):
        words.parse(flags="s", min_count=2)
    words = _Words(["-s", "-v", "3", "/a", "-5"])
    assert words.parse(flags="s", value_flags="v", min_count=2) == ({"s"}, ["/a", "-5"])
    assert words.value("v", "-1") == "3"
    for wrong in (["/a"], ["/a", "x", "y"], ["a", "x"], ["-v", "/a", "x"], ["-q", "/a", "x"]):
        with pytest.raises(_UsageError):
            _Words(wrong).parse(flags="s", value_flags="v", min_count=2)


def test_times_and_permissions_have_java_format() -> None:
    assert _date_text(0) == "Thu Jan 01 00:00:00 UTC 1970"
    assert (_permissions(31), _permissions(1)) == ("cdrwa", "r")
