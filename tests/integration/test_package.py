"""The wheels, in virtual environments that have nothing else: a broker, the clients, the tools.

`make test` tests the wheel without compiled modules on the running Python. The matrix has all
Python versions of the classifiers, and the compiled wheel.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

import kavka
from kavka.cli.catalogue import commands
from kavka.cli.config_files import FOLDER
from tests.support.missing import need_command
from tests.support.processes import free_port
from tests.support.pythons import VERSIONS, headers, interpreter

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

ROOT = Path(__file__).resolve().parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
SOURCES = ("LICENSE", "MANIFEST.in", "README.md", "CHANGELOG.md", "pyproject.toml", "setup.py")

# The pip of the tests, which also installs into Python versions that have none.
PIP = (sys.executable, "-m", "pip", "--disable-pip-version-check")

PROGRAM = """
import sys
from kavka import Consumer, Producer

with Producer(bootstrap_servers=sys.argv[1]) as producer:
    producer.send("greetings", key="k", value="hello").get(timeout=30)
with Consumer(bootstrap_servers=sys.argv[1], group_id="g", auto_offset_reset="earliest") as consumer:
    consumer.subscribe(["greetings"])
    records = []
    while not records:
        records = list(consumer.poll(10))
print(records[0].key, records[0].value)
"""


def run(*command: str | Path, cwd: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command, cwd=cwd, env={**os.environ, **environment}, capture_output=True, text=True, timeout=300, check=False
    )


@pytest.fixture(scope="module")
def build(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """Builds the sdist, and from it a wheel. Returns the wheel."""
    source = tmp_path_factory.mktemp("source")
    for name in SOURCES:
        shutil.copy(ROOT / name, source)
    ignored = shutil.ignore_patterns("__pycache__", "*.so", "*.egg-info")
    shutil.copytree(ROOT / "src", source / "src", ignore=ignored)
    wheels: dict[tuple[str, ...], Path] = {}

    def build(**environment: str) -> Path:
        key = tuple(sorted(environment.items()))
        if key not in wheels:
            output = tmp_path_factory.mktemp("dist")
            command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", output, source]
            result = run(*command, cwd=source, **environment)
            assert result.returncode == 0, result.stdout + result.stderr
            (wheels[key],) = output.glob("*.whl")
        return wheels[key]

    return build


class Installation:
    """A wheel in a new virtual environment, and a folder for its commands."""

    def __init__(self, folder: Path, python: Path, requirement: str) -> None:
        self.bin = folder / "venv" / "bin"
        self.folder = folder / "work"
        self.folder.mkdir()
        pip = [*PIP, "--python", self.bin / "python"]
        for command in (
            [python, "-m", "venv", "--without-pip", folder / "venv"],
            # pure-sasl, of the extra `cluster`, has no wheel.
            [*pip, "install", "--quiet", "--only-binary", ":all:", "--no-binary", "pure-sasl", requirement],
        ):
            result = run(*command, cwd=folder)
            assert result.returncode == 0, result.stderr

    def run(self, command: str, *arguments: str) -> subprocess.CompletedProcess[str]:
        # Neither the checkout nor a compiler is on the path.
        return run(
            self.bin / command, *arguments, cwd=self.folder, PATH=f"{self.bin}:/nonexistent", PYTHONPATH="",
            KAVKA_RUN_DIR=str(self.folder / "run"), LOG_DIR=str(self.folder / "logs"), JAVA_HOME="",
        )  # fmt: skip

    def output(self, command: str, *arguments: str) -> str:
        result = self.run(command, *arguments)
        assert result.returncode == 0, result.stdout + result.stderr
        return result.stdout


def check_installation(installation: Installation, *, is_compiled: bool) -> None:
    installed = {path.name for path in installation.bin.iterdir()}
    assert set(commands()) <= installed
    assert installation.output("kavka", "--version") == f"kavka {kavka.__version__}\n"
    form = re.search(r"^(\w+) +form: +(.*)$", installation.output("kavka", "doctor"), re.MULTILINE)
    assert form is not None
    assert form[1] == ("ok" if is_compiled else "advice")
    assert "compiled" in form[2]

    copied = installation.output("kavka", "config-files", "--copy", "config").split()
    assert copied == [f"config/{path.name}" for path in sorted(FOLDER.iterdir())]
    server = f"127.0.0.1:{free_port()}"
    overrides = [f"--override={name}=PLAINTEXT://{server}" for name in ("listeners", "advertised.listeners")]
    installation.output("kafka-server-start.sh", "-daemon", "config/standalone.properties", *overrides)
    try:
        created = installation.output(
            "kafka-topics.sh", "--bootstrap-server", server, "--create", "--topic", "greetings"
        )
        assert created == "Created topic greetings.\n"
        assert installation.output("python", "-c", PROGRAM, server) == "b'k' b'hello'\n"
        consumed = installation.output(
            "kafka-console-consumer", "--bootstrap-server", server, "--topic", "greetings", "--from-beginning",
            "--max-messages", "1",
        )  # fmt: skip
        assert consumed.splitlines()[0] == "hello"
        perf = installation.run(
            "kafka-producer-perf-test.sh", "--topic", "perf", "--num-records", "100", "--record-size", "10",
            "--throughput", "-1", "--producer-props", f"bootstrap.servers={server}",
        )  # fmt: skip
        assert "100 records sent" in perf.stdout
        assert ("plain Python" in perf.stderr) is not is_compiled
    finally:
        stopped = installation.run("kafka-server-stop.sh")
    assert stopped.returncode == 0, stopped.stderr

    missing = installation.run("kafka-storage.sh", "format")
    assert (missing.returncode, missing.stderr.count("\n")) == (1, 1)
    assert "no formatting is needed" in missing.stderr


def test_the_plain_wheel_runs_in_a_clean_environment(build: Callable[..., Path], tmp_path: Path) -> None:
    wheel = build(KAVKA_COMPILE="0")
    assert wheel.name == f"kavka-{kavka.__version__}-py3-none-any.whl"
    with tarfile.open(next(wheel.parent.glob("*.tar.gz"))) as sdist:
        names = {name.partition("/")[2] for name in sdist.getnames()}
    assert {"LICENSE", "CHANGELOG.md", "src/kavka/client/consumer/_decode.pxd"} <= names
    with zipfile.ZipFile(wheel) as archive:
        metadata = archive.read(f"kavka-{kavka.__version__}.dist-info/METADATA").decode()
    assert "License-Expression: Apache-2.0 AND MIT AND ISC\n" in metadata
    assert "@" not in "".join(line for line in metadata.splitlines() if line.startswith(("Author", "Project-URL")))
    check_installation(Installation(tmp_path, Path(sys.executable), str(wheel)), is_compiled=False)


@pytest.mark.matrix
@pytest.mark.parametrize("version", VERSIONS)
def test_the_plain_wheel_runs_on_every_python(build: Callable[..., Path], tmp_path: Path, version: str) -> None:
    installation = Installation(tmp_path, interpreter(version), f"{build(KAVKA_COMPILE='0')}[console,cluster]")
    assert installation.output("python", "--version").startswith(f"Python {version}.")
    check_installation(installation, is_compiled=False)
    quickstart = installation.output(
        "kavka", "quickstart", "--step", "broker", "--step", "records", "--step", "console"
    )
    assert "The console is at http://localhost:" in quickstart


@pytest.mark.matrix
@pytest.mark.parametrize("version", VERSIONS)
def test_the_default_build_compiles_and_needs_no_compiler_to_install(
    build: Callable[..., Path], tmp_path: Path, version: str
) -> None:
    need_command("gcc")
    (sdist,) = build(KAVKA_COMPILE="0").parent.glob("*.tar.gz")
    python = interpreter(version)
    for command in (
        [python, "-m", "venv", "--without-pip", "builder"],
        [*PIP, "--python", "builder/bin/python", "wheel", "--quiet", "--no-deps", sdist],
    ):
        result = run(*command, cwd=tmp_path, **headers(version))
        assert result.returncode == 0, result.stdout + result.stderr
    (wheel,) = tmp_path.glob("*.whl")
    assert f"-cp{version.replace('.', '')}-" in wheel.name
    check_installation(Installation(tmp_path, python, str(wheel)), is_compiled=True)


@pytest.mark.matrix
def test_a_build_without_a_compiler_makes_a_plain_wheel(build: Callable[..., Path]) -> None:
    assert build(CC="/nonexistent/cc").name.endswith("-py3-none-any.whl")


def test_the_classifiers_are_the_tested_versions() -> None:
    classifiers = re.findall(r"Python :: (3\.\d+)$", "\n".join(PROJECT["classifiers"]), re.MULTILINE)
    assert tuple(classifiers) == VERSIONS
