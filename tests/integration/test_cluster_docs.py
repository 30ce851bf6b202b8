"""The commands of docs/cluster.md and the README work as written, except for ports and folders."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.processes import free_port

pytestmark = [pytest.mark.java, pytest.mark.slow, pytest.mark.timeout(300)]

ROOT = Path(__file__).resolve().parents[2]


def blocks(document: str, first_word: str = "bin/") -> list[list[str]]:
    """The commands of each block of a document."""
    blocks = re.findall(r"^```sh\n(.*?)^```", (ROOT / document).read_text(), re.MULTILINE | re.DOTALL)
    return [[line for line in block.splitlines() if line.startswith(first_word)] for block in blocks]


class Reader:
    """A user who types the commands in a separate folder with free ports."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        first, second, third, zookeeper = (free_port() for _ in range(4))
        self.words = {
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
            text = text.replace("localhost:2181", self.words["localhost:2181"])
            (folder / "config" / name).write_text(text.replace("clientPort=2181", f"clientPort={zookeeper}"))

    def types(self, line: str) -> str:
        pattern = "|".join(map(re.escape, self.words))
        command = re.sub(pattern, lambda match: self.words[match[0]], line.partition("  #")[0])
        done = subprocess.run(
            ["sh", "-c", command],
            cwd=self.folder,
            env={**os.environ, "KAVKA_RUN_DIR": str(self.folder / "run")},
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert done.returncode == 0, f"{line}\n{done.stdout}{done.stderr}"
        return done.stdout


@pytest.fixture
def reader(java_parts: None, tmp_path: Path) -> Iterator[Reader]:
    reader = Reader(tmp_path)
    yield reader
    for line in ("bin/kavka cluster down", "bin/kafka-server-stop.sh", "bin/zookeeper-server-stop.sh"):
        command = line.replace("bin/", reader.words["bin/"])
        environment = {**os.environ, "KAVKA_RUN_DIR": str(tmp_path / "run")}
        subprocess.run(["sh", "-c", command], cwd=tmp_path, env=environment, capture_output=True, check=False)


def test_the_one_command_and_what_can_be_done_with_its_cluster(reader: Reader) -> None:
    up, topics, killed, down = blocks("docs/cluster.md")[:4]
    assert "cluster up" in up[0] and "cluster down" in down[0]
    for line in up:
        reader.types(line)
    described = [reader.types(line) for line in topics][1]
    assert described.count("\tPartition: ") == 3 and "ReplicationFactor: 3" in described
    outputs = [reader.types(line) for line in killed]
    assert outputs[0].startswith("killed broker 1")
    for line in down:
        assert reader.types(line).startswith("stopped zookeeper, broker 0, broker 1, broker 2")


def test_the_scripts_one_after_the_other(reader: Reader) -> None:
    start, stop, zkserver = blocks("docs/cluster.md")[4:]
    outputs = [reader.types(line) for line in start]
    assert outputs[0].startswith("ZooKeeper is running as process")
    assert [output.split()[1] for output in outputs[1:4]] == ["0", "1", "2"]
    assert outputs[5].endswith("[0, 1, 2]\n")
    assert '"brokerid"' in outputs[6] and '"leader_epoch":0' in outputs[7]
    stopped = [reader.types(line) for line in stop]
    assert stopped[0].count("stopped broker") == 3 and stopped[1].startswith("stopped ZooKeeper")
    assert [reader.types(line).splitlines()[-1] for line in zkserver] == [
        "Starting zookeeper ... STARTED",
        "Mode: standalone",
        "Stopping zookeeper ... STOPPED",
    ]


def test_the_cluster_of_the_readme(reader: Reader) -> None:
    (block,) = (block for block in blocks("README.md") if any("cluster up" in line for line in block))
    for line in block:
        reader.types(line)
