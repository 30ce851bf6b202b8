"""Command-line tools of Kavka and Apache Kafka on the same broker, in alternation: the two perf
tests, and the console tools in a pipe.

The first column is Kavka's tool, which uses the compiled client, the second Apache's. The times of
the console tools include the start of Python and the JVM.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from bench.clients import FETCH_SIZE, RECORD_SIZE, TOOL_JVM, VERSION
from bench.measure import Options, Row
from bench.sides import Side
from tests.support.java_client import tool_command
from tests.support.processes import dying_with_parent

TOPIC = "perf-tools"
LINE_SIZE = 100
_SENT = re.compile(r"^\d+ records sent, ([\d.]+) records/sec", re.MULTILINE)
_APACHE_NAMES = {"producer-perf-test": "producer-perf", "consumer-perf-test": "consumer-perf"}

Tool = Callable[..., list[str]]


def kavka_tool(tool: str, *args: str) -> list[str]:
    return [sys.executable, "-m", "bench.perf_tools", tool, *args]


def apache_tool(tool: str, *args: str) -> list[str]:
    return tool_command(VERSION, _APACHE_NAMES.get(tool, tool), *args, jvm=TOOL_JVM)


def run(sides: dict[str, Side], options: Options) -> list[Row]:
    rows = []
    for side in sides.values():
        rows += _perf_tests(side, options)
    rows += _console(sides["kavka"], options)
    return rows


def _perf_tests(side: Side, options: Options) -> list[Row]:
    number = str(options.records)

    def produce(command: Tool) -> float:
        side.new_topic(TOPIC)
        output = _run(
            command(
                "producer-perf-test", "--topic", TOPIC, "--num-records", number, "--record-size", str(RECORD_SIZE),
                "--throughput", "-1", "--producer-props", f"bootstrap.servers={side.bootstrap}", "acks=1",
            )
        )  # fmt: skip
        side.drop_topic(TOPIC)
        return float(_SENT.findall(output)[-1])

    def consume(command: Tool) -> float:
        output = _run(
            command(
                "consumer-perf-test", "--bootstrap-server", side.bootstrap, "--topic", f"{TOPIC}-read",
                "--messages", number, "--fetch-size", str(FETCH_SIZE), "--hide-header", "--timeout", "60000",
            )
        )  # fmt: skip
        return float([line.split(",") for line in output.splitlines() if line.count(",") >= 9][-1][9])

    sent = _in_pairs(options.pairs, produce, f"producer-perf-test on {side.title}, records/s")
    side.new_topic(f"{TOPIC}-read")
    _run(
        kavka_tool(
            "producer-perf-test", "--topic", f"{TOPIC}-read", "--num-records", number, "--record-size",
            str(RECORD_SIZE), "--throughput", "-1", "--bootstrap-server", side.bootstrap,
        )
    )  # fmt: skip
    read = _in_pairs(options.pairs, consume, f"consumer-perf-test on {side.title}, records/s")
    side.drop_topic(f"{TOPIC}-read")
    return [
        Row(f"producer-perf-test on {side.title}: Kavka's tool, Apache's tool", "records/s", sent, "≥ 0.8 ×", 0.8),
        Row(f"consumer-perf-test on {side.title}: Kavka's tool, Apache's tool", "records/s", read, "≥ 1.0 ×", 1.0),
    ]


def _console(side: Side, options: Options) -> list[Row]:
    lines = options.records
    server = ("--bootstrap-server", side.bootstrap)
    with tempfile.TemporaryDirectory() as folder:
        text = Path(folder) / "lines"
        with text.open("wb") as file:
            for number in range(lines):
                file.write(b"%d " % number + b"x" * (LINE_SIZE - 9) + b"\n")

        def produce(command: Tool) -> float:
            side.new_topic(TOPIC)
            with text.open("rb") as file:
                started = time.perf_counter()
                _run(command("console-producer", *server, "--topic", TOPIC), stdin=file)
                rate = lines / (time.perf_counter() - started)
            side.drop_topic(TOPIC)
            return rate

        sent = _in_pairs(options.pairs, produce, "console-producer, lines/s")
        side.new_topic(f"{TOPIC}-read")
        with text.open("rb") as file:
            _run(kavka_tool("console-producer", *server, "--topic", f"{TOPIC}-read"), stdin=file)

    def consume(command: Tool) -> float:
        started = time.perf_counter()
        printed = _run(
            command(
                "console-consumer", *server, "--topic", f"{TOPIC}-read", "--partition", "0", "--offset", "earliest",
                "--max-messages", str(lines),
            )
        )  # fmt: skip
        rate = lines / (time.perf_counter() - started)
        if printed.count("\n") != lines:
            raise RuntimeError(f"only {printed.count(chr(10))} of {lines} lines were printed")
        return rate

    read = _in_pairs(options.pairs, consume, "console-consumer, lines/s")
    side.drop_topic(f"{TOPIC}-read")
    return [
        Row(f"console-producer, a file of lines on {side.title}: Kavka's tool, Apache's tool", "lines/s", sent),
        Row(f"console-consumer into a pipe from {side.title}: Kavka's tool, Apache's tool", "lines/s", read),
    ]


def _in_pairs(pairs: int, measure: Callable[[Tool], float], title: str) -> list[tuple[float, float]]:
    """Measure both tools after a warm-up run of each. The order alternates."""
    measure(kavka_tool)
    measure(apache_tool)
    values = []
    for index in range(pairs):
        order = (kavka_tool, apache_tool) if index % 2 == 0 else (apache_tool, kavka_tool)
        rates = {command: measure(command) for command in order}
        values.append((rates[kavka_tool], rates[apache_tool]))
        print(f"  {title}, pair {index + 1}: {rates[kavka_tool]:,.0f} to {rates[apache_tool]:,.0f}", flush=True)
    return values


def _run(argv: list[str], stdin: object = subprocess.DEVNULL, timeout: float = 1800.0) -> str:
    process = subprocess.run(
        dying_with_parent(argv), stdin=stdin, capture_output=True, text=True, timeout=timeout, check=False
    )  # type: ignore[call-overload]
    if process.returncode:
        raise RuntimeError(f"{argv!r} ended with {process.returncode}: {process.stderr[-2000:]}")
    return str(process.stdout)


def main(argv: list[str]) -> int:
    """Run a Kavka tool with the compiled client."""
    from tests.support import forms

    forms.use(forms.COMPILED)
    from kavka.cli.main import main as tools

    return tools(argv)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
