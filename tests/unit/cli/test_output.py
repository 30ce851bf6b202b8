"""Tables, colours and progress lines on terminals, and plain output in pipes."""

from __future__ import annotations

import io

import pytest

from kavka.cli import output


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def use_terminal(monkeypatch) -> Terminal:
    terminal = Terminal()
    monkeypatch.setattr("sys.stdout", terminal)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
    return terminal


def test_columns_are_aligned_and_numbers_right_aligned(monkeypatch):
    terminal = use_terminal(monkeypatch)
    output.print_table(("NAME", "LAG", "NOTE"), [("a", 5, None), ("long-name", 1234, "x")], right_aligned=("LAG",))
    head, *rows = terminal.getvalue().splitlines()
    assert head == "\x1b[1mNAME        LAG  NOTE\x1b[0m"
    assert rows == ["a             5  -", "long-name  1234  x"]


def test_cells_may_have_colours(monkeypatch):
    terminal = use_terminal(monkeypatch)
    output.print_table(("A", "B"), [("x", "y")], cell_styles=lambda heading, cell: ("red",) if cell == "y" else ())
    assert terminal.getvalue().splitlines()[1] == "x  \x1b[31my\x1b[0m"


@pytest.mark.parametrize(("name", "value"), [("NO_COLOR", "1"), ("TERM", "dumb")])
def test_colours_can_be_turned_off(monkeypatch, name, value):
    use_terminal(monkeypatch)
    monkeypatch.setenv(name, value)
    assert output.style("x", "bold") == "x"


def test_output_in_a_pipe_has_no_colours(monkeypatch):
    monkeypatch.setattr("sys.stdout", io.StringIO())
    assert output.style("x", "bold") == "x"


def test_json_is_one_line_in_a_pipe_and_indented_on_a_terminal(monkeypatch):
    terminal = use_terminal(monkeypatch)
    output.print_json({"a": [1, "ä"]})
    assert terminal.getvalue() == '{\n  "a": [\n    1,\n    "ä"\n  ]\n}\n'
    pipe = io.StringIO()
    monkeypatch.setattr("sys.stdout", pipe)
    output.print_json({"a": [1, "ä"]})
    assert pipe.getvalue() == '{"a": [1, "ä"]}\n'


def test_progress_line_is_truncated_to_the_width_and_removed_at_the_end():
    terminal = Terminal()
    with output.Progress(terminal) as progress:
        progress.show("x" * 200)
        progress.show("too soon after the first")
        progress.show("now", force=True)
    first, second, last = terminal.getvalue().split("\r")[1:]
    assert first == "x" * 78 + "…\x1b[K"
    assert (second, last) == ("now\x1b[K", "\x1b[K")


def test_progress_line_is_not_printed_in_a_pipe():
    pipe = io.StringIO()
    with output.Progress(pipe) as progress:
        progress.show("x", force=True)
    assert pipe.getvalue() == ""
