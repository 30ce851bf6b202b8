"""The commands of pages that need a cluster work as written, except for ports and folders."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from kavka.testing import Broker
from tests.support import pages
from tests.support.missing import need_command
from tests.support.processes import free_port

pytestmark = [pytest.mark.java, pytest.mark.slow, pytest.mark.timeout(300)]

ROOT = Path(__file__).resolve().parents[2]


def blocks(document: str, first_word: str = "bin/") -> list[list[str]]:
    """Return the commands of each shell block of a document."""
    blocks = re.findall(r"^```sh\n(.*?)^```", (ROOT / document).read_text(), re.MULTILINE | re.DOTALL)
    return [[line for line in block.splitlines() if line.startswith(first_word)] for block in blocks]


class CommandRunner:
    """Runs the commands of a document in a separate folder with free ports."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        first, second, third, zookeeper = (free_port() for _ in range(4))
        self.replacements = {
            "bin/": f"{ROOT / 'bin'}/",
            "config/": f"{folder / 'config'}/",
            "/tmp/": f"{folder}/",
            "localhost:2181": f"localhost:{zookeeper}",
            "localhost:9092": f"localhost:{first}",
            "localhost:9093": f"localhost:{second}",
            "localhost:9094": f"localhost:{third}",
            "cluster up": f"cluster up --port {first} --zookeeper-port {zookeeper}",
        }
        (folder / "config").mkdir()
        for name in ("server.properties", "zookeeper.properties"):
            text = (ROOT / "config" / name).read_text().replace("/tmp/", f"{folder}/")
            text = text.replace("localhost:2181", self.replacements["localhost:2181"])
            (folder / "config" / name).write_text(text.replace("clientPort=2181", f"clientPort={zookeeper}"))
        text = (ROOT / "config" / "standalone.properties").read_text().replace(":9092", f":{first}")
        (folder / "config" / "standalone.properties").write_text(text)

    def run(self, line: str) -> str:
        pattern = "|".join(map(re.escape, self.replacements))
        command = re.sub(pattern, lambda match: self.replacements[match[0]], line.partition("  #")[0])
        result = subprocess.run(
            ["sh", "-c", command],
            cwd=self.folder,
            env={**os.environ, "KAVKA_RUN_DIR": str(self.folder / "run")},
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert result.returncode == 0, f"{line}\n{result.stdout}{result.stderr}"
        return result.stdout


@pytest.fixture
def runner(java_parts: None, tmp_path: Path) -> Iterator[CommandRunner]:
    runner = CommandRunner(tmp_path)
    yield runner
    for line in ("bin/kavka cluster down", "bin/kafka-server-stop.sh", "bin/zookeeper-server-stop.sh"):
        command = line.replace("bin/", runner.replacements["bin/"])
        environment = {**os.environ, "KAVKA_RUN_DIR": str(tmp_path / "run")}
        subprocess.run(["sh", "-c", command], cwd=tmp_path, env=environment, capture_output=True, check=False)


def test_a_cluster_starts_describes_kills_and_stops_as_documented(runner: CommandRunner) -> None:
    up, topics, kill, down = blocks("docs/cluster.md")[:4]
    assert "cluster up" in up[0] and "cluster down" in down[0]
    for line in up:
        runner.run(line)
    description = [runner.run(line) for line in topics][1]
    assert description.count("\tPartition: ") == 3 and "ReplicationFactor: 3" in description
    outputs = [runner.run(line) for line in kill]
    assert outputs[0].startswith("killed broker 1")
    for line in down:
        assert runner.run(line).startswith("stopped zookeeper, broker 0, broker 1, broker 2")


def test_the_start_and_stop_scripts_work_as_documented(runner: CommandRunner) -> None:
    start, stop, zkserver = blocks("docs/cluster.md")[4:7]
    outputs = [runner.run(line) for line in start]
    assert outputs[0].startswith("ZooKeeper is running as process")
    assert [output.split()[1] for output in outputs[1:4]] == ["0", "1", "2"]
    assert outputs[5].endswith("[0, 1, 2]\n")
    assert '"brokerid"' in outputs[6] and '"leader_epoch":0' in outputs[7]
    stop_outputs = [runner.run(line) for line in stop]
    assert stop_outputs[0].count("stopped broker") == 3 and stop_outputs[1].startswith("stopped ZooKeeper")
    assert [runner.run(line).splitlines()[-1] for line in zkserver] == [
        "Starting zookeeper ... STARTED",
        "Mode: standalone",
        "Stopping zookeeper ... STOPPED",
    ]


def test_a_unit_starts_and_stops_as_documented(runner: CommandRunner) -> None:
    (unit,) = (block for block in blocks("docs/cluster.md") if any("--shards" in line for line in block))
    outputs = [runner.run(line) for line in unit]
    assert outputs[1].startswith("unit of brokers 0 to 1 is running as process")
    assert re.findall(r"stopped (broker \d|supervisor)", outputs[3]) == ["broker 0", "broker 1", "supervisor"]


@pytest.mark.matrix  # the quickstart, which make test runs, takes the same steps
def test_the_cluster_commands_of_the_tutorial_work(runner: CommandRunner) -> None:
    commands = [
        line
        for block in pages.blocks("docs/tutorial.md")
        if "cluster" in block.section.split()
        for line in block.commands
    ]
    outputs = [runner.run(line) for line in commands]
    assert "stored after the failure\n" in outputs


def test_the_commands_of_operations_work(runner: CommandRunner) -> None:
    outputs = {line: runner.run(line) for block in pages.blocks("docs/operations.md") for line in block.commands}
    health = [output for line, output in outputs.items() if "--describe --u" in line and line.startswith("bin/")]
    assert health == ["", "", ""]
    (moved,) = (output for line, output in outputs.items() if "--verify" in line)
    assert moved.count("is completed.") == 6 and "Clearing topic-level throttles" in moved


@pytest.mark.matrix  # the quickstart, which make test runs, takes the same steps
def test_the_word_count_of_the_tutorial_works(tmp_path: Path) -> None:
    need_command("java")
    (commands,) = (block.commands for block in pages.blocks("docs/tutorial.md") if "pipeline run" in block.text)
    environment = {**os.environ, "KAVKA_PIPELINE_DIR": str(tmp_path / "jobs"), "TMPDIR": str(tmp_path)}
    outputs = []
    with Broker() as broker, (tmp_path / "output").open("wb") as output:
        job = None
        for line in commands:
            command = line.replace("localhost:9092", broker.bootstrap_servers)
            if command.endswith(" &"):
                command = f"exec {command.removesuffix(' &')} --config state.dir={tmp_path / 'state'}"
                job = subprocess.Popen(command, shell=True, cwd=ROOT, env=environment, stdout=output, stderr=output)
            else:
                result = subprocess.run(
                    command, shell=True, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=120,
                    check=False,
                )  # fmt: skip
                assert result.returncode == 0, f"{line}\n{result.stderr}\n{(tmp_path / 'output').read_text()}"
                outputs.append(result.stdout)
        assert job is not None
        assert job.wait(60) == 0
    counts = outputs[3].split("\n")
    assert {"all\t1", "streams\t1", "lead\t1", "to\t1", "kavka\t1"} <= set(counts)
    assert "RUNNING" in outputs[4]
