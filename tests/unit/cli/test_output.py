"""Tables, colours and live lines: at terminals, and nowhere else."""

from __future__ import annotations

import io

import pytest

from kavka.cli import output


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def at_a_terminal(monkeypatch) -> Terminal:
    made = Terminal()
    monkeypatch.setattr("sys.stdout", made)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
    return made


def test_columns_are_aligned_and_numbers_to_the_right(monkeypatch):
    terminal = at_a_terminal(monkeypatch)
    output.print_table(("NAME", "LAG", "NOTE"), [("a", 5, None), ("long-name", 1234, "x")], right=("LAG",))
    head, *rows = terminal.getvalue().splitlines()
    assert head == "\x1b[1mNAME        LAG  NOTE\x1b[0m"
    assert rows == ["a             5  -", "long-name  1234  x"]


def test_a_cell_may_have_a_colour(monkeypatch):
    terminal = at_a_terminal(monkeypatch)
    output.print_table(("A", "B"), [("x", "y")], styled=lambda heading, cell: ("red",) if cell == "y" else ())
    assert terminal.getvalue().splitlines()[1] == "x  \x1b[31my\x1b[0m"


@pytest.mark.parametrize(("name", "value"), [("NO_COLOR", "1"), ("TERM", "dumb")])
def test_colours_can_be_turned_off(monkeypatch, name, value):
    at_a_terminal(monkeypatch)
    monkeypatch.setenv(name, value)
    assert output.style("x", "bold") == "x"


def test_there_are_no_colours_in_a_pipe(monkeypatch):
    monkeypatch.setattr("sys.stdout", io.StringIO())
    assert output.style("x", "bold") == "x"


def test_json_is_one_line_in_a_pipe_and_indented_at_a_terminal(monkeypatch):
    terminal = at_a_terminal(monkeypatch)
    output.print_json({"a": [1, "ä"]})
    assert terminal.getvalue() == '{\n  "a": [\n    1,\n    "ä"\n  ]\n}\n'
    pipe = io.StringIO()
    monkeypatch.setattr("sys.stdout", pipe)
    output.print_json({"a": [1, "ä"]})
    assert pipe.getvalue() == '{"a": [1, "ä"]}\n'


def test_a_live_line_is_cut_to_the_width_and_taken_away_in_the_end():
    terminal = Terminal()
    with output.Progress(terminal) as progress:
        progress.show("x" * 200)
        progress.show("too soon after the first")
        progress.show("now", now=True)
    first, second, last = terminal.getvalue().split("\r")[1:]
    assert first == "x" * 78 + "…\x1b[K"
    assert (second, last) == ("now\x1b[K", "\x1b[K")


def test_nobody_looks_at_a_live_line_in_a_pipe():
    pipe = io.StringIO()
    with output.Progress(pipe) as progress:
        progress.show("x", now=True)
    assert pipe.getvalue() == ""
