from __future__ import annotations

import pytest

from kavka.cli.zookeeper_shell import _moment, _permissions, _split, _Usage, _Words


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
def test_a_line_is_words_and_quotes_hold_some_together(line: str, words: list[str]) -> None:
    assert _split(line) == words


def test_a_quotation_without_an_end_is_refused() -> None:
    with pytest.raises(ValueError, match="no end"):
        _split('set /a "two words')


def test_flags_values_and_paths_are_told_apart() -> None:
    words = _Words(["-sv", "/a", "data"])
    with pytest.raises(_Usage):
        words.parse(flags="s", least=2)
    words = _Words(["-s", "-v", "3", "/a", "-5"])
    assert words.parse(flags="s", with_value="v", least=2) == ({"s"}, ["/a", "-5"])
    assert words.value("v", "-1") == "3"
    for wrong in (["/a"], ["/a", "x", "y"], ["a", "x"], ["-v", "/a", "x"], ["-q", "/a", "x"]):
        with pytest.raises(_Usage):
            _Words(wrong).parse(flags="s", with_value="v", least=2)


def test_times_and_permissions_are_as_java_prints_them() -> None:
    assert _moment(0) == "Thu Jan 01 00:00:00 UTC 1970"
    assert (_permissions(31), _permissions(1)) == ("cdrwa", "r")
