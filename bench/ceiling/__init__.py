"""The limit of the machine: a server in C without checks and state (`ceiling.c`) as a third side.

Its records are not kept from one topic to the next. A consumer reads a segment that is prepared
before the measurement: batches of equal size, with as many records as the benchmark reads.
"""

from __future__ import annotations

import math
import shutil
import subprocess
from pathlib import Path

from bench.sides import CEILING, Side
from tests.support import wire
from tests.support.processes import ManagedProcess, Server, free_port, wait_until

SOURCE = Path(__file__).with_name("ceiling.c")
BATCH_RECORDS = 15
"""A batch has 15 KB, as the batches of the Java producer with `batch.size=16384`."""
CHUNK_BATCHES = 1000


def compiler() -> str | None:
    """Return the C compiler of this machine."""
    return shutil.which("cc")


class CeilingServer(Server):
    def __init__(self, folder: Path, records: int, record_size: int) -> None:
        super().__init__(free_port())
        self._folder = folder
        self._program = folder / "ceiling"
        subprocess.run([str(compiler()), "-O2", "-o", self._program, SOURCE], check=True)
        self._segment = folder / "segment"
        self._batch = wire.batch([b"x" * record_size] * BATCH_RECORDS)
        self._batches = math.ceil(records / BATCH_RECORDS)
        _write_segment(self._segment, self._batch, self._batches)

    @property
    def bootstrap_servers(self) -> str:
        return f"127.0.0.1:{self.port}"

    def start(self, partitions: int = 1) -> None:
        command = [self._program, self.port, self._folder, partitions, self._segment]
        command += [len(self._batch), BATCH_RECORDS, self._batches]
        self._process = ManagedProcess(list(map(str, command)), log=self._folder / "ceiling.out")
        wait_until(self._responds, timeout=30, what="the server of the ceiling")

    def _responds(self) -> bool:
        if not self.process.running():
            raise RuntimeError(f"the server of the ceiling ended: {self.process.log_tail()}")
        with wire.Wire(self.address) as connection:
            return connection.call(wire.API_VERSIONS, 0, b"").int16() == 0


class CeilingSide(Side):
    """A server that accepts every topic. `records` is the number of records that can be read."""

    def __init__(self, folder: Path, *, records: int, record_size: int) -> None:
        self.name = CEILING
        self.folder = folder
        self.client_settings = {}
        folder.mkdir(parents=True, exist_ok=True)
        self.server = CeilingServer(folder, records, record_size)

    @property
    def title(self) -> str:
        return "the ceiling"

    @property
    def bootstrap(self) -> str:
        return self.server.bootstrap_servers

    @property
    def address(self) -> tuple[str, int]:
        return self.server.address

    def start(self) -> None:
        self.server.start()

    def cpu_seconds(self) -> float:
        return self.server.process.cpu_seconds()

    def rss_mib(self) -> float:
        return self.server.process.rss_bytes() / (1 << 20)

    def new_topic(self, topic: str, partitions: int = 1) -> None:
        """Start the server again with empty files and this number of partitions."""
        self.server.kill()
        self.server.start(partitions)

    def drop_topic(self, topic: str) -> None:
        self.new_topic(topic)

    def close(self) -> None:
        self.server.kill()
        shutil.rmtree(self.folder, ignore_errors=True)


def _write_segment(path: Path, batch: bytes, count: int) -> None:
    """Write batches with consecutive offsets. The CRC of a batch does not cover its offset."""
    with path.open("wb") as file:
        for first in range(0, count, CHUNK_BATCHES):
            chunk = bytearray(batch * min(CHUNK_BATCHES, count - first))
            for index in range(len(chunk) // len(batch)):
                offset = (first + index) * BATCH_RECORDS
                chunk[index * len(batch) : index * len(batch) + 8] = offset.to_bytes(8, "big")
            file.write(chunk)
