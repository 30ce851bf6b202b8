"""`kavka security init`: a secured single node by the commands that the tool prints."""

from __future__ import annotations

import shlex
import stat
import subprocess
from pathlib import Path

from tests.support.processes import dying_with_parent, free_port, wait_until
from tests.support.tools import kavka_command, run_kavka, run_kavka_process


def printed_commands(output: str) -> list[list[str]]:
    """The arguments of each printed command, without the name of the program."""
    lines = output.replace("\\\n", " ").splitlines()
    return [shlex.split(line)[1:] for line in lines if line.startswith("  ")]


def test_the_printed_commands_secure_a_node(tmp_path: Path) -> None:
    folder, port = tmp_path / "security", free_port()
    created = run_kavka("security", "init", str(folder), "--port", str(port))
    assert created.code == 0, created.err
    assert {path.name for path in folder.iterdir()} == {
        "ca.pem",
        "server.pem",
        "users",
        "server.properties",
        "admin.properties",
    }
    for name in ("server.pem", "users", "server.properties", "admin.properties"):
        assert stat.S_IMODE((folder / name).stat().st_mode) == 0o600, name
    server, create, add_user, add_acl = printed_commands(created.out)
    assert (folder / "users").read_text().split("password=")[1].strip("]\n") not in created.out
    command = dying_with_parent(kavka_command(*server))
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE) as broker:
        try:
            wait_until(lambda: run_kavka(*create).code == 0, timeout=60, what="the secured broker")
            assert run_kavka(*add_user).code == 0
            assert run_kavka(*add_acl).code == 0
            consume = ["--bootstrap-server", f"localhost:{port}", "--topic", "greetings", "--from-beginning"]
            consume += ["--timeout-ms", "3000", "--group", "readers"]
            without_credentials = run_kavka_process("console-consumer", *consume)
            assert "no broker is reachable" in without_credentials.err
            alice = tmp_path / "alice.properties"
            password = (folder / "admin.properties").read_text()
            secret = password.split('password="')[1].split('"')[0]
            renamed = password.replace('username="admin"', 'username="alice"').replace(secret, "a-good-password")
            alice.write_text(renamed)
            readable = run_kavka_process("console-consumer", *consume, "--consumer.config", str(alice))
            assert "Processed a total of 0 messages" in readable.err, readable.err
            denied = run_kavka_process(
                "topics",
                *("--bootstrap-server", f"localhost:{port}", "--command-config", str(alice), "--delete"),
                *("--topic", "greetings"),
            )
            assert denied.code != 0
        finally:
            broker.terminate()
            broker.communicate(timeout=60)


def test_an_existing_folder_and_a_bad_host_are_refused(tmp_path: Path) -> None:
    result = run_kavka("security", "init", str(tmp_path))
    assert (result.code, "exists already" in result.err) == (1, True)
    result = run_kavka("security", "init", str(tmp_path / "new"), "--host", "a,b")
    assert (result.code, "is no host name" in result.err) == (1, True)
    assert not (tmp_path / "new").exists()
