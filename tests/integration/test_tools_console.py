"""console-producer, console-consumer, get-offsets and the verifiable tools, on a Kavka broker and
on an Apache broker, compared with Apache's tools."""

from __future__ import annotations

import json
import re
import select
import shlex
import signal
import subprocess
import time
from collections.abc import Callable
from typing import Any

import pytest

from kavka import Admin, Consumer, NewTopic, Producer, TopicPartition
from kavka.cli.catalogue import find, table_of
from tests.support.java_client import run_tool
from tests.support.processes import dying_with_parent, free_port
from tests.support.targets import KAVKA, Target, start_target
from tests.support.tools import ApacheTools, kavka_command, run_kavka_process

pytestmark = [pytest.mark.java, pytest.mark.timeout(240), pytest.mark.usefixtures("java_parts")]

PRINT_ALL = [
    f"--property=print.{part}=true" for part in ("key", "headers", "timestamp", "offset", "partition")
]  # fmt: skip
PARSE = [
    "--property=parse.key=true", "--property=parse.headers=true", "--property=null.marker=NULL",
    "--property=ignore.error=true",
]  # fmt: skip
LINES = "h1:v1,h2:NULL\tk1\tone\nNULL\tk2\ttwo\nNULL\tNULL\tthree\nno separators\nh:x\tk3\tNULL\nh:x\tk4\tümläut\n"


def produce_lines(broker: Target, topic: str, lines: str | bytes, *args: str) -> None:
    data = lines.encode() if isinstance(lines, str) else lines
    result = run_kavka_process(
        "console-producer", "--bootstrap-server", broker.bootstrap_servers, "--topic", topic, *args, stdin=data
    )
    assert (result.code, result.out) == (0, ""), result.err


def consume(broker: Target, *args: str) -> tuple[str, str]:
    result = run_kavka_process("console-consumer", "--bootstrap-server", broker.bootstrap_servers, *args)
    assert result.code == 0, result.err
    return result.out, result.err


def without_times(text: str) -> str:
    return re.sub(r"CreateTime:\d+", "CreateTime:", text)


def test_lines_become_the_same_records_as_with_kafkas_tools(
    either: Target, apache_tools: ApacheTools, topic: str
) -> None:
    kavka_topic, apache_topic = f"{topic}-kavka", f"{topic}-apache"
    produce_lines(either, kavka_topic, LINES, *PARSE)
    server = ("--bootstrap-server", either.bootstrap_servers)
    produced = apache_tools.run("console-producer", *server, "--topic", apache_topic, *PARSE, stdin=LINES)
    assert produced.code == 0, produced.err
    printed = []
    for name in (kavka_topic, apache_topic):
        read = ("--topic", name, "--from-beginning", "--max-messages", "6", "--timeout-ms", "30000", *PRINT_ALL)
        out, err = consume(either, *read)
        assert err == "Processed a total of 6 messages\n"
        apache_output = apache_tools.run("console-consumer", *server, *read).out
        # 4.3 first prints that --property is deprecated.
        printed += [without_times(out), without_times("".join(apache_output.splitlines(keepends=True)[-6:]))]
    assert printed[0].count("\n") == 6
    assert "CreateTime:\tPartition:0\tOffset:0\th1:v1,h2:null\tk1\tone\n" in printed[0]
    assert "\tNO_HEADERS\tnull\tno separators\n" in printed[0]
    assert printed.count(printed[0]) == 4, printed


def test_internal_topics_are_printed_as_by_kafka(either: Target, apache_tools: ApacheTools, topic: str) -> None:
    server = either.bootstrap_servers
    with Producer(bootstrap_servers=server, transactional_id=f"tx-{topic}") as producer:
        producer.init_transactions()
        producer.begin_transaction()
        producer.send(topic, "in a transaction")
        producer.commit_transaction()
    with Consumer(bootstrap_servers=server, group_id=f"g-{topic}", auto_offset_reset="earliest") as consumer:
        consumer.subscribe([topic])
        while not consumer.poll(1.0):
            pass
        consumer.commit_sync()

    def objects(text: str) -> list[Any]:
        objects = []
        decoder = json.JSONDecoder()
        while text:
            value, end = decoder.raw_decode(text)
            text = text[end:]
            if topic in json.dumps(value["key"]):
                # The field `version` of 3.9 is `type` in 4.3.
                kind = value["key"].pop("version", None)
                objects.append({**value, "kind": kind if kind is not None else value["key"].pop("type")})
        return objects

    for internal, formatter in (
        ("__consumer_offsets", "OffsetsMessageFormatter"),
        ("__consumer_offsets", "GroupMetadataMessageFormatter"),
        ("__transaction_state", "TransactionLogMessageFormatter"),
    ):
        with Consumer(bootstrap_servers=server) as consumer:
            count = consumer.end_offsets([(internal, 0)])[TopicPartition(internal, 0)]
        args = ("--topic", internal, "--partition", "0", "--offset", "earliest", "--timeout-ms", "30000")
        args += ("--max-messages", str(count))
        args += ("--formatter", f"org.apache.kafka.tools.consumer.{formatter}")
        kavka = objects(consume(either, *args)[0])
        apache = objects(apache_tools.run("console-consumer", "--bootstrap-server", server, *args).out)
        assert kavka == apache
        assert kavka


def test_the_options_of_the_consumer_select_records(either: Target, topic: str) -> None:
    with Admin(bootstrap_servers=either.bootstrap_servers) as admin:
        admin.create_topics([NewTopic(topic, 2)])
    with Producer(bootstrap_servers=either.bootstrap_servers) as producer:
        for number in range(10):
            producer.send(topic, str(number), partition=number % 2)
    partition = ("--topic", topic, "--partition", "1", "--timeout-ms", "20000")
    assert consume(either, *partition, "--offset", "3", "--max-messages", "1")[0] == "7\n"
    assert consume(either, *partition, "--from-beginning", "--max-messages", "2")[0] == "1\n3\n"
    grouped = ("--topic", topic, "--group", f"g-{topic}", "--from-beginning", "--timeout-ms", "20000")
    first = consume(either, *grouped, "--max-messages", "4")[0].split()
    remaining = consume(either, *grouped, "--max-messages", "6")[0].split()
    assert sorted(map(int, first + remaining)) == list(range(10))
    by_pattern = ("--include", f"{topic[:-1]}.", "--from-beginning", "--max-messages", "10", "--timeout-ms", "20000")
    assert len(consume(either, *by_pattern)[0].split()) == 10
    out, err = consume(either, "--topic", topic, "--timeout-ms", "1500", "--enable-systest-events")
    assert (out, err) == ("shutdown_complete\n", "Processed a total of 0 messages\n")


def test_read_committed_omits_aborted_records(either: Target, topic: str) -> None:
    with Producer(bootstrap_servers=either.bootstrap_servers, transactional_id=f"tx-{topic}") as producer:
        producer.init_transactions()
        for text, commit in (("first", True), ("aborted", False), ("last", True)):
            producer.begin_transaction()
            producer.send(topic, text)
            producer.flush()
            if commit:
                producer.commit_transaction()
            else:
                producer.abort_transaction()
    read = ("--topic", topic, "--from-beginning", "--timeout-ms", "20000")
    assert consume(either, *read, "--max-messages", "3")[0] == "first\naborted\nlast\n"
    committed = consume(either, *read, "--max-messages", "2", "--isolation-level", "read_committed")
    assert committed[0] == "first\nlast\n"


def test_offsets_equal_those_of_kafkas_tool(either: Target, apache_tools: ApacheTools, topic: str) -> None:
    with Admin(bootstrap_servers=either.bootstrap_servers) as admin:
        admin.create_topics([NewTopic(topic, 3)])
    with Producer(bootstrap_servers=either.bootstrap_servers) as producer:
        for number in range(7):
            producer.send(topic, str(number), partition=number % 3, timestamp=1_700_000_000_000 + number)
    for args in (
        ("--topic", topic),
        ("--topic-partitions", f"{topic}:1-,nothing"),
        ("--topic", topic, "--partitions", "0,2", "--time", "earliest"),
        ("--topic", topic, "--time", "1700000000003"),
        ("--topic", topic, "--time", "-3"),
        ("--topic", f"{topic}-not-there"),
        ("--topic", topic, "--topic-partitions", topic),
        ("--topic", topic, "--partitions", "x"),
    ):
        kavka = run_kavka_process("get-offsets", "--bootstrap-server", either.bootstrap_servers, *args)
        apache = apache_tools.run("get-offsets", "--bootstrap-server", either.bootstrap_servers, *args)
        assert (kavka.code, kavka.out, kavka.err) == (apache.code, apache.out, apache.err)


def events(text: str) -> list[dict[str, Any]]:
    events = [json.loads(line) for line in text.splitlines() if line.startswith("{")]
    for event in events:
        event.pop("timestamp")
        event.pop("avg_throughput", None)
    return events


def test_verifiable_tools_print_the_same_events(either: Target, topic: str) -> None:
    server = ("--bootstrap-server", either.bootstrap_servers)
    # These tools do not retry: the topics must have leaders.
    for name in (topic, f"{topic}-apache"):
        produce_lines(either, name, "first\n")
    send = ("--max-messages", "5", "--repeating-keys", "2", "--value-prefix", "9", "--acks", "-1")
    kavka = run_kavka_process("verifiable-producer", *server, "--topic", topic, *send)
    apache = run_tool("4.3.0", "verifiable-producer", *server, "--topic", f"{topic}-apache", *send)
    assert kavka.code == 0
    assert events(kavka.out) == events(apache.stdout.replace("-apache", ""))
    read = ("--max-messages", "6", "--verbose", "--topic", topic)
    kavka = run_kavka_process("verifiable-consumer", *server, *read, "--group-id", f"a-{topic}")
    apache = run_tool("4.3.0", "verifiable-consumer", *server, *read, "--group-id", f"b-{topic}")
    assert kavka.code == 0, kavka.err
    # Apache's tool also reports the end of the JVM.
    assert events(kavka.out) == [event for event in events(apache.stdout) if event["name"] != "shutdown_requested"]


def start(tool: str, *args: str, **options: Any) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        dying_with_parent(kavka_command(tool, *args)), stdout=subprocess.PIPE, stderr=subprocess.PIPE, **options
    )


def test_ctrl_c_ends_a_consumer_with_its_count(target: Target, topic: str) -> None:
    produce_lines(target, topic, "one\n")
    consumer = start(
        "console-consumer", "--bootstrap-server", target.bootstrap_servers, "--topic", topic, "--partition", "0",
        "--from-beginning",
    )  # fmt: skip
    assert consumer.stdout is not None
    assert consumer.stdout.readline() == b"one\n"
    consumer.send_signal(signal.SIGINT)
    _, err = consumer.communicate(timeout=30)
    assert (consumer.returncode, err) == (130, b"Processed a total of 1 messages\n")


def test_a_closed_pipe_ends_a_consumer_without_an_error(target: Target, topic: str) -> None:
    produce_lines(target, topic, "one\ntwo\n")
    consumer = start(
        "console-consumer", "--bootstrap-server", target.bootstrap_servers, "--topic", topic, "--partition", "0",
        "--from-beginning",
    )  # fmt: skip
    assert consumer.stdout is not None and consumer.stderr is not None
    assert consumer.stdout.readline() == b"one\n"
    consumer.stdout.close()
    assert consumer.wait(timeout=30) == 0
    assert re.fullmatch(rb"Processed a total of [12] messages\n", consumer.stderr.read())


def test_lines_typed_before_ctrl_c_are_sent(target: Target, topic: str) -> None:
    producer = start(
        "console-producer", "--bootstrap-server", target.bootstrap_servers, "--topic", topic, stdin=subprocess.PIPE
    )
    assert producer.stdin is not None
    producer.stdin.write(b"typed\n")
    producer.stdin.flush()
    deadline = time.monotonic() + 30
    with Admin(bootstrap_servers=target.bootstrap_servers) as admin:
        while topic not in admin.list_topics():
            assert time.monotonic() < deadline
            time.sleep(0.05)
    producer.send_signal(signal.SIGINT)
    producer.communicate(timeout=30)
    assert producer.returncode == 130
    read = ("--topic", topic, "--partition", "0", "--from-beginning", "--max-messages", "1", "--timeout-ms", "20000")
    assert consume(target, *read)[0] == "typed\n"


def test_bad_input_is_reported_with_an_exit_code(target: Target, topic: str) -> None:
    produce_lines(target, topic, b"\xff is no UTF-8\r\nlast")
    read = ("--topic", topic, "--partition", "0", "--from-beginning", "--timeout-ms", "20000")
    assert consume(target, *read, "--max-messages", "2")[0] == "\ufffd is no UTF-8\nlast\n"
    server = ("--bootstrap-server", target.bootstrap_servers)

    def fails(message: str, tool: str, *args: str, stdin: bytes = b"") -> None:
        failed = run_kavka_process(tool, *server, *args, stdin=stdin)
        assert failed.code == 1
        assert message in failed.err.splitlines()[-1]
        assert "Traceback" not in failed.err

    fails("No key separator found on line number 2: 'x'", "console-producer", "--topic", topic,
          "--property", "parse.key=true", stdin=b"k\tv\nx\n")  # fmt: skip
    fails("compression.type", "console-producer", "--topic", topic, "--compression-codec", "brotli")
    fails('Missing required argument "[topic]"', "console-producer")
    fails("Exactly one of --include/--topic is required.", "console-consumer")
    fails("The provided offset value 'x' is incorrect", "console-consumer", "--topic", topic, "--partition", "0",
          "--offset", "x")  # fmt: skip
    fails("--skip-message-on-error", "console-consumer", *read, "--max-messages", "2", "--value-deserializer",
          "org.apache.kafka.common.serialization.LongDeserializer")  # fmt: skip
    skipped = run_kavka_process(
        "console-consumer", *server, *read, "--max-messages", "2", "--skip-message-on-error", "--value-deserializer",
        "org.apache.kafka.common.serialization.LongDeserializer",
    )  # fmt: skip
    assert (skipped.code, skipped.out) == (0, "")
    assert "at offset 1: " in skipped.err


@pytest.mark.parametrize(
    "run",
    [
        lambda server: run_kavka_process(
            "console-producer", *server, "--topic", "t", "--max-block-ms", "500", stdin=b"x\n"
        ),
        lambda server: run_kavka_process("get-offsets", *server, "--timeout", "500"),
        lambda server: run_kavka_process(
            "producer-perf-test", "--topic", "t", "--num-records", "5", "--record-size", "10", "--throughput", "-1",
            "--producer-props", f"bootstrap.servers={server[1]}", "max.block.ms=500",
        ),
    ],
)  # fmt: skip
def test_an_unreachable_broker_is_reported(run: Callable[[tuple[str, str]], Any]) -> None:
    failed = run(("--bootstrap-server", f"127.0.0.1:{free_port()}"))
    assert failed.code == 1
    assert len(failed.err.splitlines()) == 1


TOOLS = (
    "console-producer", "verifiable-producer", "producer-perf-test", "console-consumer", "verifiable-consumer",
    "consumer-perf-test", "get-offsets", "dump-log", "replica-verification",
)  # fmt: skip
ENDLESS = ("console-consumer", "verifiable-consumer", "replica-verification")


def test_the_examples_of_the_help_texts_work(tmp_path_factory: pytest.TempPathFactory) -> None:
    """The port, the number of records of a benchmark, and the folder of the broker are replaced."""
    broker = start_target("kavka", tmp_path_factory.mktemp("examples"), {"group.initial.rebalance.delay.ms": 0})
    try:
        producer = Producer(bootstrap_servers=broker.bootstrap_servers)
        producer.send("orders", "one").get(30)
        for name in TOOLS:
            tool = find(name)
            assert tool is not None
            for example in table_of(tool).examples:
                words = shlex.split(
                    example.replace("localhost:9092", broker.bootstrap_servers)
                    .replace("5000000", "2000")
                    .replace("kavka-data", str(broker.log_dirs[0]))
                )
                assert words[:2] == ["kavka", name]
                process = start(name, *words[2:], stdin=subprocess.PIPE)
                if name in ENDLESS:
                    # Some consumers start at the latest offset.
                    while not select.select([process.stdout], [], [], 0.3)[0]:
                        producer.send("orders", "more")
                    process.send_signal(signal.SIGINT)
                _, err = process.communicate(b"" if name in ENDLESS else b"k:v\n", timeout=60)
                assert process.returncode == (130 if name in ENDLESS else 0), (example, err)
        producer.close()
    finally:
        broker.close()


def test_features_sets_the_metadata_version_of_a_kraft_cluster_only(either: Target, apache_tools: ApacheTools) -> None:
    server = ("--bootstrap-server", either.bootstrap_servers)
    release = "4.0" if either.version == KAVKA else either.version.rpartition(".")[0]
    upgraded = run_kavka_process("features", *server, "upgrade", "--metadata", release)
    if either.version == KAVKA:
        assert upgraded.code == 1
        assert "this cluster has no metadata.version" in upgraded.err
        return
    apache = apache_tools.run("features", *server, "upgrade", "--metadata", release)
    assert (upgraded.code, apache.code) == (0, 0), (upgraded, apache)
    assert upgraded.out and apache.out.endswith(upgraded.out)
    unknown = run_kavka_process("features", *server, "upgrade", "--metadata", "9.9")
    assert unknown.code == 1
    assert "Unknown metadata.version '9.9'" in unknown.err
