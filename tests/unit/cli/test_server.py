from __future__ import annotations

import errno
import io
import logging
import os
import sys
import types
from pathlib import Path

import pytest

from kavka.cli import running, server
from kavka.cli.catalogue import find, table_of
from kavka.cli.options import parse
from kavka.common.config import ConfigError
from kavka.storage.log_dir import LogDirError


@pytest.fixture(autouse=True)
def working_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv(running.RUN_DIR_VARIABLE, str(tmp_path / "run"))


@pytest.fixture
def app(monkeypatch):
    """A fake broker. It records its settings and calls the function `behaviour`, which a test may
    set."""

    class App(types.ModuleType):
        settings = None
        behaviour = staticmethod(lambda settings, ready: 0)

        def run(self, settings, ready=None, new_users=()):
            self.new_users = new_users
            self.settings = settings
            return self.behaviour(settings, ready)

    fake = App("kavka.broker.app")
    monkeypatch.setitem(sys.modules, "kavka.broker.app", fake)
    monkeypatch.setattr("kavka.broker.app", fake, raising=False)
    return fake


def raising(error):
    def behaviour(settings, ready):
        raise error

    return behaviour


def test_broker_without_a_file_listens_on_localhost(app, tmp_path):
    assert server.main([]) == 0
    assert [str(listener) for listener in app.settings.listeners] == ["PLAINTEXT://localhost:9092"]
    assert app.settings.log_dirs == (tmp_path / "kavka-data",)


def test_overrides_take_precedence_over_the_file(app, tmp_path):
    (tmp_path / "s.properties").write_text("broker.id=1\nnum.partitions=2\n")
    assert server.main(["s.properties", "--override", "broker.id=5", "--override", "log.dirs=x"]) == 0
    assert (app.settings.broker_id, app.settings.num_partitions) == (5, 2)


def test_exit_code_of_the_broker_is_returned(app):
    app.behaviour = lambda settings, ready: 3
    assert server.main([]) == 3


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (["nowhere.properties"], "nowhere.properties: there is no such file"),
        (["--override", "log.segment.bytes=1"], "log.segment.bytes: 1 is not allowed"),
        (["--override", "nonsense"], "expected name=value"),
    ],
)
def test_invalid_settings_are_reported_in_one_line(app, capsys, argv, words):
    assert server.main(argv) == 1
    output = capsys.readouterr()
    assert words in output.err
    assert output.err.count("\n") == 1
    assert app.settings is None


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (ConfigError("listeners", "PLAINTEXT://localhost:9092 is in use"), "listeners: PLAINTEXT://localhost:9092 is"),
        (PermissionError(errno.EACCES, "Permission denied", "/data"), "/data: Permission denied"),
        (LogDirError("/data is held by another broker"), "/data is held by another broker"),
    ],
)
def test_start_error_is_reported_in_one_line(app, capsys, error, words):
    app.behaviour = raising(error)
    assert server.main([]) == 1
    output = capsys.readouterr()
    assert words in output.err
    assert output.err.count("\n") == 1


def test_unexpected_exception_is_raised(app):
    app.behaviour = raising(ZeroDivisionError())
    with pytest.raises(ZeroDivisionError):
        server.main([])


def test_unknown_option_is_reported_with_exit_code_1(capsys):
    assert server.main(["--nonsense"]) == 1
    assert capsys.readouterr().err.count("\n") == 1


def test_actual_ports_are_written_to_ready_fd(app):
    read_end, write_end = os.pipe()
    app.behaviour = lambda settings, ready: (
        ready([listener._replace(port=4711) for listener in settings.listeners]) or 0
    )
    assert server.main(["--ready-fd", str(write_end)]) == 0
    assert os.read(read_end, 100) == b"PLAINTEXT://localhost:4711\n"
    assert os.read(read_end, 100) == b""
    os.close(read_end)


def test_commands_in_the_welcome_text_are_valid(app, capsys, monkeypatch):
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    app.behaviour = lambda settings, ready: ready(settings.listeners) or 0
    server.main([])
    output = capsys.readouterr().out
    assert "localhost:9092" in output
    assert "Ctrl-C" in output
    for line in output.splitlines():
        if line.startswith("  ") and "--topic" in line:
            words = line.replace("echo hello | ", "").split()
            assert Path(words[0]).name == "kavka" and os.access(words[0], os.X_OK)
            parse(table_of(find(words[1])), words[2:])


def test_running_broker_is_registered_for_server_stop(app):
    entries = []
    app.behaviour = lambda settings, ready: entries.extend(running.brokers()) or 0
    server.main(["--override", "broker.id=7"])
    assert [(entry.pid, entry.broker_id) for entry in entries] == [(os.getpid(), 7)]
    assert running.brokers() == []


def test_server_stop_without_a_broker_fails(capsys):
    assert server.stop_main([]) == 1
    assert capsys.readouterr().err == "kavka: no Kavka broker to stop\n"


def test_server_stop_selects_the_broker_by_its_log_dirs(app, capsys, tmp_path):
    codes = []
    app.behaviour = lambda settings, ready: codes.append(server.stop_main(["--override", "log.dirs=elsewhere"])) or 0
    assert server.main([]) == 0
    assert codes == [1]
    assert "no Kavka broker to stop" in capsys.readouterr().err


def test_shipped_config_files_are_valid():
    config = Path(__file__).parents[3] / "config"
    settings = server.Settings.load(config / "standalone.properties")
    assert settings.warnings == ()
    assert str(settings.advertised_listeners[0]) == "PLAINTEXT://localhost:9092"
    settings = server.Settings.load(config / "server.properties")
    assert settings.warnings == ()
    assert settings.in_cluster


def test_recovery_progress_is_a_live_line_on_a_terminal(app, monkeypatch):
    terminal = io.StringIO()
    monkeypatch.setattr(terminal, "isatty", lambda: True)
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.delenv("KAVKA_LOG_LEVEL", raising=False)
    progress = logging.getLogger(server.PROGRESS_LOGGER)
    try:
        server._set_up_logging()
        progress.info("Loaded %d of %d logs", 1, 2)
        progress.info("Loaded %d of %d logs", 2, 2)
        server._fail("the end")
    finally:
        progress.handlers, progress.propagate = [], True
        progress.setLevel(logging.NOTSET)
    output = terminal.getvalue()
    assert output == "\rLoaded 1 of 2 logs\x1b[K\rLoaded 2 of 2 logs\x1b[K\r\x1b[Kkavka: the end\n"


def test_scram_users_are_created_at_the_start(app, tmp_path, capsys):
    users = tmp_path / "users"
    users.write_text("SCRAM-SHA-512=[name=bob,password=a,b=c,iterations=8192]\n\n")
    assert server.main(["--add-scram", "SCRAM-SHA-256=[name=alice,password=secret]", f"--add-scram=@{users}"]) == 0
    assert [tuple(user) for user in app.new_users] == [
        ("SCRAM-SHA-256", "alice", "secret", 4096),
        ("SCRAM-SHA-512", "bob", "a,b=c", 8192),
    ]
    for text in ("alice", "SCRAM-SHA-1=[name=a,password=b]", "SCRAM-SHA-256=[name=a,password=b,iterations=1]", "@none"):
        assert server.main(["--add-scram", text]) == 1
        assert capsys.readouterr().err.startswith("kavka: --add-scram: ")
