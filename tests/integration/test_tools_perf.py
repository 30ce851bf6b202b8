"""The perf tests: on our broker and on Apache's, beside Apache's tools of the same name."""

from __future__ import annotations

import os
import pty
import re
import signal
import subprocess
from pathlib import Path

import pytest

from kavka import Consumer, TopicPartition
from tests.support.processes import dying_with_parent
from tests.support.targets import Target
from tests.support.tools import ApacheTools, kavka_command, run_kavka_process

pytestmark = [pytest.mark.java, pytest.mark.timeout(240), pytest.mark.usefixtures("java_parts")]

NUMBER = re.compile(r"\d+(\.\d+)?")


def shape(text: str) -> list[str]:
    """The kinds of lines, without their figures and the notes that 4.3 has about older options."""
    lines = [line for line in text.splitlines() if not line.startswith(("Option --", "Warning: --"))]
    return list(dict.fromkeys(NUMBER.sub("#", line) for line in lines))


def values(server: str, topic: str, count: int, **settings: str) -> list[bytes]:
    records: list[bytes] = []
    with Consumer(bootstrap_servers=server, auto_offset_reset="earliest", **settings) as consumer:
        consumer.assign([TopicPartition(topic, 0)])
        while len(records) < count:
            records += [record.value for record in consumer.poll(5.0)]
    return records


def test_producing_is_reported_in_the_lines_of_kafkas_tool(
    either: Target, apache_tools: ApacheTools, topic: str
) -> None:
    server = either.bootstrap_servers
    args = (
        "--topic", topic, "--num-records", "4000", "--record-size", "100", "--throughput", "2000",
        "--warmup-records", "1000", "--reporting-interval", "300",
        "--producer-props", f"bootstrap.servers={server}", "acks=1",
    )  # fmt: skip
    mine = run_kavka_process("producer-perf-test", *args)
    assert (mine.code, mine.err) == (0, "")
    theirs = apache_tools.run("producer-perf", *args)
    # Whether there is a line about an interval depends on how busy the machine is.
    sometimes = {
        "In steady state.",
        "# records sent, # records/sec (# MB/sec), # ms avg latency, # ms max latency.",
    }
    always = [kind for kind in shape(mine.out) if kind not in sometimes]
    assert always == [kind for kind in shape(theirs.out) if kind not in sometimes]
    assert len(always) == 3
    assert re.search(
        r"^4000 records sent, \d+\.\d{6} records/sec \(\d+\.\d{2} MB/sec\), \d+\.\d{2} ms avg latency, "
        r"\d+\.\d{2} ms max latency, \d+ ms 50th, \d+ ms 95th, \d+ ms 99th, \d+ ms 99\.9th\.$",
        mine.out,
        re.MULTILINE,
    )
    assert mine.out.splitlines()[-1].startswith("3000 steady state records sent, ")
    rate = float(mine.out.splitlines()[-2].split()[3])
    assert rate < 2100
    records = values(server, topic, 8000)
    assert len(set(records[:4000])) == 4000
    assert all(re.fullmatch(rb"[A-Z]{100}", value) for value in records)


def test_consuming_is_reported_in_the_columns_of_kafkas_tool(
    either: Target, apache_tools: ApacheTools, topic: str
) -> None:
    server = either.bootstrap_servers
    filled = run_kavka_process(
        "producer-perf-test", "--bootstrap-server", server, "--topic", topic, "--num-records", "20000",
        "--record-size", "500", "--throughput", "-1", "--command-property", "compression.type=lz4",
    )  # fmt: skip
    assert filled.code == 0, filled.err
    args = ("--bootstrap-server", server, "--topic", topic, "--messages", "20000", "--timeout", "60000")
    mine = run_kavka_process("consumer-perf-test", *args)
    theirs = apache_tools.run("consumer-perf", *args)
    assert (mine.code, mine.err) == (0, "")
    assert shape(mine.out) == shape(theirs.out)
    counted = [[line.split(", ")[column] for column in (2, 4)] for line in (
        mine.out.splitlines()[-1], theirs.out.splitlines()[-1]
    )]  # fmt: skip
    assert counted[0] == ["9.5367", "20000"]
    assert counted[1][1] == "20000"
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
    mine = run_kavka_process(
        "producer-perf-test", *send, "--num-records", "200", "--payload-file", str(file), "--payload-delimiter", ";"
    )
    assert mine.code == 0, mine.err
    assert mine.out.splitlines()[:2] == [f"Reading payloads from: {file}", "Number of messages read: 3"]
    assert set(values(server, topic, 200)) == {b"one", b"two", b"three"}
    numbered = run_kavka_process(
        "producer-perf-test", *send, "--num-records", "50", "--payload-monotonic", "--print-metrics"
    )
    assert numbered.code == 0, numbered.err
    assert values(server, topic, 250)[200:] == [b"%d" % number for number in range(50)]
    assert re.search(r"^Metric Name +Value$", numbered.out, re.MULTILINE)
    sent = r"^producer-metrics:record-send-total:\{client-id=perf-producer-client\} +: 50\.000$"
    assert re.search(sent, numbered.out, re.MULTILINE)


def test_records_are_sent_in_transactions(either: Target, topic: str) -> None:
    server = either.bootstrap_servers
    mine = run_kavka_process(
        "producer-perf-test", "--topic", topic, "--num-records", "600", "--record-size", "10", "--throughput", "2000",
        "--transaction-duration-ms", "50", "--producer-props", f"bootstrap.servers={server}",
    )  # fmt: skip
    assert mine.code == 0, mine.err
    assert len(values(server, topic, 600, isolation_level="read_committed")) == 600
    with Consumer(bootstrap_servers=server) as consumer:
        # Every commit leaves a marker: there was more than one.
        assert consumer.end_offsets([(topic, 0)])[TopicPartition(topic, 0)] > 601


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (("--record-size", "5", "--payload-monotonic"), "exactly one of --record-size"),
        (("--record-size", "0"), "--record-size should be greater than zero"),
        (("--record-size", "5", "--num-record", "3"), 'Missing required argument "[bootstrap-server]"'),
        (("--record-size", "5", "--producer-props", "bootstrap.servers=x:1", "acks=7"), "acks"),
        (("--record-siz", "5", "--bogus"), "bogus is not a recognized option"),
    ],
)
def test_a_wrong_command_line_is_one_line(args: tuple[str, ...], said: str) -> None:
    base = ("--topic", "t", "--throughput", "-1")
    number = () if "--num-record" in args else ("--num-records", "5")
    done = run_kavka_process("producer-perf-test", *base, *number, *args)
    assert done.code == 1
    assert said in done.err
    assert len(done.err.splitlines()) == 1


def test_ctrl_c_ends_both_quietly(target: Target, topic: str) -> None:
    producing = (
        "producer-perf-test", "--topic", topic, "--num-records", "100000000", "--record-size", "100",
        "--throughput", "1000", "--reporting-interval", "100", "--bootstrap-server", target.bootstrap_servers,
    )  # fmt: skip
    consuming = (
        "consumer-perf-test", "--topic", topic, "--messages", "100000000", "--bootstrap-server",
        target.bootstrap_servers, "--show-detailed-stats", "--reporting-interval", "100", "--timeout", "60000",
    )  # fmt: skip
    for tool, *args in (producing, consuming):
        running = subprocess.Popen(
            dying_with_parent(kavka_command(tool, *args)), stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
        assert running.stdout is not None
        assert running.stdout.readline()
        running.send_signal(signal.SIGINT)
        _, err = running.communicate(timeout=30)
        assert (running.returncode, err) == (130, b"")


def test_a_reader_that_has_seen_enough_ends_them_quietly(target: Target, topic: str) -> None:
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
        running = subprocess.Popen(dying_with_parent(command), stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        assert running.stdout is not None and running.stderr is not None
        assert running.stdout.readline()
        running.stdout.close()
        assert running.wait(timeout=60) == 0
        assert running.stderr.read() == b""


def test_a_person_at_a_terminal_sees_a_live_line(target: Target, topic: str) -> None:
    for tool, *args in (
        ("producer-perf-test", "--num-records", "3000", "--record-size", "100", "--throughput", "2000"),
        ("consumer-perf-test", "--num-records", "3000", "--timeout", "60000"),
    ):
        ours, theirs = pty.openpty()
        with open(ours, "rb", buffering=0) as terminal:
            running = subprocess.Popen(
                dying_with_parent(
                    kavka_command(tool, "--bootstrap-server", target.bootstrap_servers, "--topic", topic, *args)
                ),
                stdout=subprocess.PIPE,
                stderr=theirs,
            )
            os.close(theirs)
            out, _ = running.communicate(timeout=90)
            seen = terminal.read(65536).decode()
        assert running.returncode == 0
        assert re.search(r"\r[\d,]+ of 3,000 records, [\d,]+ records/s, \d+\.\d MB/s", seen)
        # It is taken away at the end, and is no part of the output.
        assert seen.endswith("\r\x1b[K")
        assert b" of 3,000 records" not in out


def test_replicas_are_verified_until_it_is_ended(either: Target, topic: str) -> None:
    filled = run_kavka_process(
        "producer-perf-test", "--bootstrap-server", either.bootstrap_servers, "--topic", topic, "--num-records", "500",
        "--record-size", "50", "--throughput", "-1",
    )  # fmt: skip
    assert filled.code == 0, filled.err
    running = subprocess.Popen(
        dying_with_parent(kavka_command(
            "replica-verification", "--broker-list", either.bootstrap_servers, "--topics-include", topic, "--time",
            "-2", "--report-interval-ms", "100", "--max-wait-ms", "50",
        )),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )  # fmt: skip
    assert running.stdout is not None
    assert running.stdout.readline().endswith(": verification process is started\n")
    pattern = rf"\S+ \S+: max lag is 0 for partition {topic}-0 at offset 500 among 1 partitions\n"
    line = running.stdout.readline()
    while not re.fullmatch(pattern, line):
        assert re.search(r": max lag is \d+ for partition ", line)
        line = running.stdout.readline()
    running.send_signal(signal.SIGINT)
    _, err = running.communicate(timeout=30)
    assert (running.returncode, err) == (130, "")
