"""The clients of the benchmarks, each in a separate process, and their results."""

from __future__ import annotations

import json
import re
import subprocess
import threading
from collections.abc import Mapping
from typing import Any, NamedTuple, Protocol

from bench.sides import Side
from tests.support.java_client import probe_command, tool_command
from tests.support.processes import dying_with_parent

VERSION = "4.3.0"
RECORD_SIZE = 1000
FETCH_SIZE = 1_048_576
# The JVM options of Kafka's perf scripts.
TOOL_JVM = ("-Xmx512M", "-server", "-XX:+UseG1GC", "-XX:MaxGCPauseMillis=20", "-XX:MaxInlineLevel=15")

_PRODUCED = re.compile(r"^(\d+) records sent, ([\d.]+) records/sec \(([\d.]+) MB/sec\)", re.MULTILINE)
_LATENCIES = re.compile(r"([\d.]+) ms 50th, ([\d.]+) ms 95th, ([\d.]+) ms 99th, ([\d.]+) ms 99\.9th")
_READY = re.compile(r"^ready$")


class HasBootstrap(Protocol):
    @property
    def bootstrap(self) -> str: ...


class Latencies(NamedTuple):
    """Milliseconds from `send` to the acknowledgement."""

    p50: float
    p95: float
    p99: float
    p999: float


class Client:
    """A client process. `result` of a subclass waits until the process has ended and parses its
    output."""

    def __init__(self, argv: list[str]) -> None:
        self.process = subprocess.Popen(
            dying_with_parent(argv), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        self._lines: list[str] = []
        self.ready = threading.Event()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self._lines.append(line)
            if _READY.match(line):
                self.ready.set()

    def output(self, timeout: float) -> str:
        """Wait until the process has ended, and return its output. Raise RuntimeError if it
        failed."""
        try:
            code = self.process.wait(timeout)
        finally:
            if self.process.poll() is None:
                self.process.kill()
                self.process.wait()
        self._reader.join(5)
        if code != 0:
            assert self.process.stderr is not None
            raise RuntimeError(
                f"{self.process.args!r} ended with exit code {code}: {self.process.stderr.read()[-2000:]}"
            )
        return "".join(self._lines)


class Producer(Client):
    """Apache's ProducerPerformance with acks=1, batches of 16 KB and no rate limit by default.

    `warm_up` records are excluded from the latencies. `settings` are further settings.
    """

    def __init__(
        self,
        side: HasBootstrap,
        topic: str,
        records: int,
        *,
        acks: str = "1",
        rate: int = -1,
        warm_up: int = 0,
        settings: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(
            tool_command(
                VERSION,
                "producer-perf",
                *("--topic", topic, "--num-records", str(records), "--record-size", str(RECORD_SIZE)),
                *("--throughput", str(rate), "--warmup-records", str(warm_up)),
                *("--producer-props", f"bootstrap.servers={side.bootstrap}", f"acks={acks}", "batch.size=16384"),
                *_arguments(settings),
                jvm=TOOL_JVM,
            )
        )

    def result(self, timeout: float = 1800.0) -> float:
        """Return the records per second."""
        summaries = _PRODUCED.findall(self.output(timeout))
        if not summaries:
            raise RuntimeError("ProducerPerformance reported no summary")
        return float(summaries[-1][1])

    def latencies(self, timeout: float = 1800.0) -> Latencies:
        """Return the latencies of the records after the warm-up."""
        output = self.output(timeout)
        summaries = _LATENCIES.findall(output)
        if not summaries:
            raise RuntimeError(f"ProducerPerformance reported no latencies: {output[-500:]}")
        return Latencies(*map(float, summaries[-1]))


class Consumer(Client):
    """Apache's Java consumer with an assigned partition instead of a group, in KavkaProbe."""

    def __init__(self, side: Side, topic: str, records: int, start: str = "begin") -> None:
        command = ("consume-perf", side.bootstrap, topic, str(records), str(FETCH_SIZE), start)
        super().__init__(probe_command(VERSION, *command, *_arguments(side.client_settings), jvm=TOOL_JVM))
        self._records = records

    def result(self, timeout: float = 1800.0) -> float:
        """Return the records per second."""
        report: dict[str, Any] = json.loads(self.output(timeout).splitlines()[-1])
        if report["records"] < self._records:
            raise RuntimeError(f"only {report['records']} of {self._records} records were read")
        return float(report["records"] / report["seconds"])


class GroupConsumer(Client):
    """Apache's ConsumerPerformance, which consumes in a group."""

    def __init__(self, side: Side, topic: str, records: int) -> None:
        super().__init__(
            tool_command(
                VERSION,
                "consumer-perf",
                *("--bootstrap-server", side.bootstrap, "--topic", topic, "--fetch-size", str(FETCH_SIZE)),
                *("--messages", str(records), "--hide-header", "--timeout", "60000"),
                *(word for argument in _arguments(side.client_settings) for word in ("--command-property", argument)),
                jvm=TOOL_JVM,
            )
        )

    def result(self, timeout: float = 1800.0) -> float:
        """Return the records per second of fetching, without the time to join the group."""
        lines = [line.split(",") for line in self.output(timeout).splitlines() if line.count(",") >= 9]
        return float(lines[-1][9])


def _arguments(settings: Mapping[str, str] | None) -> list[str]:
    return [f"{name}={value}" for name, value in (settings or {}).items()]


def produce(side: Side, topic: str, records: int) -> float:
    return Producer(side, topic, records, settings=side.client_settings).result()


def consume(side: Side, topic: str, records: int, *, in_group: bool = False) -> float:
    client = GroupConsumer(side, topic, records) if in_group else Consumer(side, topic, records)
    return client.result()
