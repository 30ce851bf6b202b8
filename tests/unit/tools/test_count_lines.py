"""The line count that `make check` prints."""

from __future__ import annotations

from tools import count_lines

SOURCE = '''"""Docstring
of two lines."""

# A comment.
def f():
    """Docstring."""
    return """text

of three lines"""
'''


def test_code_lines_exclude_blank_lines_comments_and_docstrings():
    assert count_lines.code_lines(SOURCE) == 4


def test_lines_are_counted_by_package(tmp_path):
    (tmp_path / "api").mkdir()
    (tmp_path / "api" / "fetch.py").write_text(SOURCE)
    (tmp_path / "jobs.py").write_text("x = 1\n")
    total, code = count_lines.count(tmp_path)
    assert total == {"api": 9, "jobs": 1}
    assert code == {"api": 4, "jobs": 1}


def test_every_broker_layer_has_lines(capsys):
    count_lines.main()
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ["package", "lines", "code"]
    assert [line.split()[0] for line in lines[1:12]] == list(count_lines.BROKER_LAYERS)
    assert all(int(line.split()[-1]) > 0 for line in lines[1:])
