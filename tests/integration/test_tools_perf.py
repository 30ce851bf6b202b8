"""The performance tools, on a Kavka broker and on an Apache broker, compared with Apache's
tools."""

from __future__ import annotations

import os
import pty
import re
import signal
import subprocess
from pathlib import Path

import pytest

from kavka import Consumer, TopicPartition
from kavka.cli.form import PLAIN_FORM, is_compiled
from tests.support.processes import dying_with_parent
from tests.support.targets import Target
from tests.support.tools import ApacheTools, kavka_command, run_kavka_process

pytestmark = [pytest.mark.java, pytest.mark.timeout(240), pytest.mark.usefixtures("java_parts")]

NUMBER = re.compile(r"\d+(\.\d+)?")


def form_note(tool: str) -> str:
    """The line that a perf test prints after its results if the client runs in its plain form."""
    return "" if is_compiled() else f"kavka {tool}: {PLAIN_FORM}\n"


def shape(text: str) -> list[str]:
    """The distinct lines, without numbers and without the warnings of 4.3 about deprecated
    options."""
    lines = [line for line in text.splitlines() if not line.startswith(("Option --", "Warning: --"))]
    return list(dict.fromkeys(NUMBER.sub("#", line) for line in lines))


def values(server: str, topic: str, count: int, **settings: str) -> list[bytes]:
    records: list[bytes] = []
    with Consumer(bootstrap_servers=server, auto_offset_reset="earliest", **settings) as consumer:
        consumer.assign([TopicPartition(topic, 0)])
        while len(records) < count:
            records += [record.value for record in consumer.poll(5.0)]
    return records


def test_the_producer_tool_prints_the_lines_of_kafkas_tool(
    either: Target, apache_tools: ApacheTools, topic: str
) -> None:
    server = either.bootstrap_servers
    args = (
        "--topic", topic, "--num-records", "4000", "--record-size", "100", "--throughput", "2000",
        "--warmup-records", "1000", "--reporting-interval", "300",
        "--producer-props", f"bootstrap.servers={server}", "acks=1",
    )  # fmt: skip
    kavka = run_kavka_process("producer-perf-test", *args)
    assert (kavka.code, kavka.err) == (0, form_note("producer-perf-test"))
    apache = apache_tools.run("producer-perf", *args)
    # Lines about intervals depend on the load of the machine.
    optional = {
        "In steady state.",
        "# records sent, # records/sec (# MB/sec), # ms avg latency, # ms max latency.",
    }
    lines = [line for line in shape(kavka.out) if line not in optional]
    assert lines == [line for line in shape(apache.out) if line not in optional]
    assert len(lines) == 3
    assert re.search(
        r"^4000 records sent, \d+\.\d{6} records/sec \(\d+\.\d{2} MB/sec\), \d+\.\d{2} ms avg latency, "
        r"\d+\.\d{2} ms max latency, \d+ ms 50th, \d+ ms 95th, \d+ ms 99th, \d+ ms 99\.9th\.$",
        kavka.out,
        re.MULTILINE,
    )
    assert kavka.out.splitlines()[-1].startswith("3000 steady state records sent, ")
    rate = float(kavka.out.splitlines()[-2].split()[3])
    assert rate < 2100
    records = values(server, topic, 8000)
    assert len(set(records[:4000])) == 4000
    assert all(re.fullmatch(rb"[A-Z]{100}", value) for value in records)


def test_the_consumer_tool_prints_the_columns_of_kafkas_tool(
    either: Target, apache_tools: ApacheTools, topic: str
) -> None:
    server = either.bootstrap_servers
    filled = run_kavka_process(
        "producer-perf-test", "--bootstrap-server", server, "--topic", topic, "--num-records", "20000",
        "--record-size", "500", "--throughput", "-1", "--command-property", "compression.type=lz4",
    )  # fmt: skip
    assert filled.code == 0, filled.err
    args = ("--bootstrap-server", server, "--topic", topic, "--messages", "20000", "--timeout", "60000")
    kavka = run_kavka_process("consumer-perf-test", *args)
    apache = apache_tools.run("consumer-perf", *args)
    assert (kavka.code, kavka.err) == (0, form_note("consumer-perf-test"))
    assert shape(kavka.out) == shape(apache.out)
    counts = [[line.split(", ")[column] for column in (2, 4)] for line in (
        kavka.out.splitlines()[-1], apache.out.splitlines()[-1]
    )]  # fmt: skip
    assert counts[0] == ["9.5367", "20000"]
    assert counts[1][1] == "20000"
    detailed = (*args, "--show-detailed-stats", "--reporting-interval", "1", "--date-format", "HH", "--hide-header")
    lines = run_kavka_process("consumer-perf-test", *detailed).out.splitlines()
    assert lines
    assert all(re.fullmatch(r"\d\d, 0(, \d+(\.\d{4})?){8}", line) for line in lines)
    assert int(lines[-1].split(", ")[4]) <= 20000
    early = run_kavka_process(
        "consumer-perf-test", "--bootstrap-server", server, "--topic", topic, "--messages", "20001", "--timeout",
        "1500", "--hide-header",
    )  # fmt: skip
    assert early.out.startswith(
        "WARNING: Exiting before consuming the expected number of messages: timeout (1500 ms) exceeded."
    )


def test_payloads_come_from_a_file_or_are_numbers(either: Target, topic: str, tmp_path: Path) -> None:
    server = either.bootstrap_servers
    file = tmp_path / "payloads"
    file.write_text("one;two;three;;")
    send = ("--topic", topic, "--throughput", "-1", "--bootstrap-server", server)
    kavka = run_kavka_process(
        "producer-perf-test", *send, "--num-records", "200", "--payload-file", str(file), "--payload-delimiter", ";"
    )
    assert kavka.code == 0, kavka.err
    assert kavka.out.splitlines()[:2] == [f"Reading payloads from: {file}", "Number of messages read: 3"]
    assert set(values(server, topic, 200)) == {b"one", b"two", b"three"}
    numbered = run_kavka_process(
        "producer-perf-test", *send, "--num-records", "50", "--payload-monotonic", "--print-metrics"
    )
    assert numbered.code == 0, numbered.err
    assert values(server, topic, 250)[200:] == [b"%d" % number for number in range(50)]
    assert re.search(r"^Metric Name +Value$", numbered.out, re.MULTILINE)
    metric = r"^producer-metrics:record-send-total:\{client-id=perf-producer-client\} +: 50\.000$"
    assert re.search(metric, numbered.out, re.MULTILINE)


def test_records_are_sent_in_transactions(either: Target, topic: str) -> None:
    server = either.bootstrap_servers
    kavka = run_kavka_process(
        "producer-perf-test", "--topic", topic, "--num-records", "600", "--record-size", "10", "--throughput", "2000",
        "--transaction-duration-ms", "50", "--producer-props", f"bootstrap.servers={server}",
    )  # fmt: skip
    assert kavka.code == 0, kavka.err
    assert len(values(server, topic, 600, isolation_level="read_committed")) == 600
    with Consumer(bootstrap_servers=server) as consumer:
        # Every commit writes a marker. There was more than one transaction.
        assert consumer.end_offsets([(topic, 0)])[TopicPartition(topic, 0)] > 601


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (("--record-size", "5", "--payload-monotonic"), "exactly one of --record-size"),
        (("--record-size", "0"), "--record-size should be greater than zero"),
        (("--record-size", "5", "--num-record", "3"), 'Missing required argument "[bootstrap-server]"'),
        (("--record-size", "5", "--producer-props", "bootstrap.servers=x:1", "acks=7"), "acks"),
        (("--record-siz", "5", "--bogus"), "bogus is not a recognized option"),
    ],
)
def test_an_invalid_command_line_is_reported_in_one_line(args: tuple[str, ...], message: str) -> None:
    base = ("--topic", "t", "--throughput", "-1")
    number = () if "--num-record" in args else ("--num-records", "5")
    failed = run_kavka_process("producer-perf-test", *base, *number, *args)
    assert failed.code == 1
    assert message in failed.err
    assert len(failed.err.splitlines()) == 1


def test_ctrl_c_ends_both_tools_without_an_error(target: Target, topic: str) -> None:
    producing = (
        "producer-perf-test", "--topic", topic, "--num-records", "100000000", "--record-size", "100",
        "--throughput", "1000", "--reporting-interval", "100", "--bootstrap-server", target.bootstrap_servers,
    )  # fmt: skip
    consuming = (
        "consumer-perf-test", "--topic", topic, "--messages", "100000000", "--bootstrap-server",
        target.bootstrap_servers, "--show-detailed-stats", "--reporting-interval", "100", "--timeout", "60000",
    )  # fmt: skip
    for tool, *args in (producing, consuming):
        process = subprocess.Popen(
            dying_with_parent(kavka_command(tool, *args)), stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
        assert process.stdout is not None
        assert process.stdout.readline()
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=30)
        assert (process.returncode, err) == (130, b"")


def test_a_closed_pipe_ends_the_tools_without_an_error(target: Target, topic: str) -> None:
    server = ("--bootstrap-server", target.bootstrap_servers, "--topic", topic)
    for command in (
        kavka_command(
            "producer-perf-test", *server, "--num-records", "100000000", "--record-size", "100", "--throughput", "500",
            "--reporting-interval", "100",
        ),
        kavka_command("verifiable-producer", *server, "--throughput", "500"),
        kavka_command("verifiable-consumer", *server, "--group-id", f"g-{topic}", "--verbose"),
        kavka_command("consumer-perf-test", *server, "--messages", "100000000", "--show-detailed-stats",
                    "--reporting-interval", "1", "--timeout", "5000"),
    ):  # fmt: skip
        process = subprocess.Popen(dying_with_parent(command), stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        assert process.stdout is not None and process.stderr is not None
        assert process.stdout.readline()
        process.stdout.close()
        assert process.wait(timeout=60) == 0
        assert process.stderr.read() == b""


def test_a_terminal_shows_the_progress(target: Target, topic: str) -> None:
    for tool, *args in (
        ("producer-perf-test", "--num-records", "3000", "--record-size", "100", "--throughput", "2000"),
        ("consumer-perf-test", "--num-records", "3000", "--timeout", "60000"),
    ):
        parent, child = pty.openpty()
        with open(parent, "rb", buffering=0) as terminal:
            process = subprocess.Popen(
                dying_with_parent(
                    kavka_command(tool, "--bootstrap-server", target.bootstrap_servers, "--topic", topic, *args)
                ),
                stdout=subprocess.PIPE,
                stderr=child,
            )
            os.close(child)
            out, _ = process.communicate(timeout=90)
            shown = terminal.read(65536).decode()
        assert process.returncode == 0
        assert re.search(r"\r[\d,]+ of 3,000 records, [\d,]+ records/s, \d+\.\d MB/s", shown)
        # The progress is erased at the end, and is not part of the output. A note of the plain form
        # of the client may follow.
        progress, erase, after = shown.rpartition("\r\x1b[K")
        assert progress and erase and " of 3,000 records" not in after
        assert b" of 3,000 records" not in out


def test_replicas_are_verified_until_ctrl_c(either: Target, topic: str) -> None:
    filled = run_kavka_process(
        "producer-perf-test", "--bootstrap-server", either.bootstrap_servers, "--topic", topic, "--num-records", "500",
        "--record-size", "50", "--throughput", "-1",
    )  # fmt: skip
    assert filled.code == 0, filled.err
    process = subprocess.Popen(
        dying_with_parent(kavka_command(
            "replica-verification", "--broker-list", either.bootstrap_servers, "--topics-include", topic, "--time",
            "-2", "--report-interval-ms", "100", "--max-wait-ms", "50",
        )),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )  # fmt: skip
    assert process.stdout is not None
    assert process.stdout.readline().endswith(": verification process is started\n")
    pattern = rf"\S+ \S+: max lag is 0 for partition {topic}-0 at offset 500 among 1 partitions\n"
    line = process.stdout.readline()
    while not re.fullmatch(pattern, line):
        assert re.search(r": max lag is \d+ for partition ", line)
        line = process.stdout.readline()
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=30)
    assert (process.returncode, err) == (130, "")
