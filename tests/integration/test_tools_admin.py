"""The administration tools have the same output and exit codes as Apache's tools, on a Kavka
cluster and on an Apache cluster."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from kavka import Admin, ConfigResource, Consumer, NewTopic, Producer, TopicPartition
from tests.support.cluster import ApacheCluster, Cluster, KavkaCluster
from tests.support.processes import wait_until
from tests.support.side_by_side import SideBySide
from tests.support.tools import ApacheTools, run_kavka
from tests.support.zookeeper import ZooKeeper

pytestmark = [pytest.mark.java, pytest.mark.timeout(300), pytest.mark.usefixtures("java_parts")]

ASSIGNMENT = "0:1,1:2,2:0"


@pytest.fixture(scope="module", params=["kavka", "apache"])
def cluster(
    request: pytest.FixtureRequest, java_parts: None, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Cluster]:
    folder = tmp_path_factory.mktemp(f"tools-{request.param}")
    zookeeper = ZooKeeper(folder / "zookeeper")
    cluster_class = {"kavka": KavkaCluster, "apache": ApacheCluster}[request.param]
    try:
        two_disks = {0: (folder / "disk-1", folder / "disk-2")}
        with cluster_class(folder / "brokers", zookeeper, log_dirs=two_disks) as cluster:
            yield cluster
    finally:
        zookeeper.kill()


@pytest.fixture(scope="module")
def apache39(java_parts: None) -> Iterator[ApacheTools]:
    with ApacheTools("3.9.1") as tools:
        yield tools


@pytest.fixture(scope="module")
def apache43(java_parts: None) -> Iterator[ApacheTools]:
    with ApacheTools("4.3.0") as tools:
        yield tools


@pytest.fixture
def both39(cluster: Cluster, apache39: ApacheTools) -> SideBySide:
    return SideBySide(cluster, apache39)


@pytest.fixture
def both43(cluster: Cluster, apache43: ApacheTools) -> SideBySide:
    return SideBySide(cluster, apache43)


def create_topics(both: SideBySide, *options: str) -> None:
    both.assert_same_effect("topics", "--create", "--topic", "{t}", "--replica-assignment", ASSIGNMENT, *options)
    both.wait_until_in_sync(3)


def test_topics_prints_the_output_of_kafkas_tool(both43: SideBySide) -> None:
    both = both43
    created = both.assert_same_effect(
        "topics", "--create", "--topic", "{t}", "--replica-assignment", ASSIGNMENT,
        "--config", "retention.ms=3600000", "--config", "cleanup.policy=compact",
    )  # fmt: skip
    assert created == f"Created topic {both.names['ours']}.\n"
    both.wait_until_in_sync(3)
    both.assert_same_effect("topics", "--create", "--topic", "{t}", "--if-not-exists")
    both.assert_same_output("topics", "--list")
    assert both.assert_same_output("topics", "--list", "--topic", "{t}|nothing") == f"{both.names['ours']}\n"
    described = both.assert_same_output("topics", "--describe", "--topic", "{t}")
    page_size = ("--partition-size-limit-per-response", "1")
    assert both.assert_same_output("topics", "--describe", *page_size, "--topic", "{t}") == described
    assert described.count("\n\tTopic:") == 3
    both.assert_same_output("topics", "--describe", "--exclude-internal", ordered=False)
    both.assert_same_output("topics", "--describe", "--topics-with-overrides", ordered=False)
    filters = ("--under-replicated-partitions", "--unavailable-partitions", "--under-min-isr-partitions")
    for options in (*((name,) for name in filters), filters):
        assert both.assert_same_output("topics", "--describe", "--topic", "{t}", *options) == ""
    assert both.assert_same_output("topics", "--describe", "--topic", "nothing", "--if-exists") == ""
    arguments = ("--topic", "{t}", "--partitions", "4")
    both.assert_same_effect("topics", "--alter", *arguments, "--replica-assignment", f"{ASSIGNMENT},0:2")
    both.wait_until_in_sync(4)
    both.assert_same_effect("topics", "--describe", "--topic", "{t}")
    both.assert_same_failure("topics", "--create", "--topic", "{t}")
    both.assert_same_failure("topics", "--alter", "--topic", "{t}", "--partitions", "2")
    both.assert_same_failure("topics", "--describe", "--topic", "nothing")
    both.assert_same_failure("topics", "--delete", "--topic", "nothing")
    both.assert_same_failure("topics", "--create", "--topic", "{t}-2", "--replication-factor", "9")
    both.assert_same_failure("topics", "--create", "--topic", "{t}-2", "--partitions", "0")
    both.assert_same_failure("topics", "--create", "--topic", "a name", message="a name")
    both.assert_same_failure("topics", "--create", "--topic", "{t}-2", "--config", "nonsense=1", message="nonsense")
    both.assert_same_effect("topics", "--delete", "--topic", "{t}")
    both.wait_until_deleted()


@pytest.mark.parametrize(
    "args",
    [
        ("--create",),
        ("--list", "--describe"),
        ("--describe", "--partitions", "3"),
        ("--alter", "--topic", "x"),
        ("--list", "--under-replicated-partitions"),
    ],
)
def test_topics_rejects_invalid_command_lines(both39: SideBySide, args: tuple[str, ...]) -> None:
    both39.assert_same_failure("topics", *args)


def test_configs_changes_and_prints_topic_settings_as_kafkas_tool(both39: SideBySide) -> None:
    both = both39
    create_topics(both)
    topic = ("--entity-type", "topics", "--entity-name", "{t}")
    added = "--add-config", "retention.ms=12345,cleanup.policy=[compact,delete]"
    assert both.assert_same_effect("configs", "--alter", *topic, *added) == (
        f"Completed updating config for topic {both.names['ours']}.\n"
    )
    java_topic = ConfigResource.topic(both.names["java"])
    both.wait_everywhere(lambda admin: setting(admin, java_topic, "retention.ms") == "12345", "the settings")
    both.assert_same_output("configs", "--describe", *topic)
    both.assert_same_output("configs", "--describe", *topic, "--all")
    both.assert_same_output("configs", "--describe", "--topic", "{t}")
    both.assert_same_effect("configs", "--alter", "--topic", "{t}", "--delete-config", "retention.ms")
    both.assert_same_failure(
        "configs", "--alter", "--topic", "{t}", "--delete-config", "segment.ms", message="segment.ms"
    )
    both.assert_same_failure("configs", "--alter", "--topic", "{t}", "--add-config", "nonsense=1", message="nonsense")
    both.assert_same_failure("configs", "--alter", "--topic", "{t}", "--add-config", "nonsense", message='"key=val"')
    both.assert_same_failure(
        "configs", "--alter", "--topic", "nothing", "--add-config", "retention.ms=1", message="nothing"
    )
    both.assert_same_failure("configs", "--describe")
    both.assert_same_failure("configs", "--alter", "--topic", "{t}")


def setting(admin: Admin, resource: ConfigResource, name: str) -> str | None:
    entry = admin.describe_configs(resource)[resource].get(name)
    return None if entry is None else entry.value


def test_configs_changes_and_prints_broker_settings_as_kafkas_tool(both39: SideBySide) -> None:
    both = both39
    for entity in (("--entity-name", "1"), ("--entity-default",)):
        brokers = ("--entity-type", "brokers", *entity)
        both.assert_same_effect("configs", "--alter", *brokers, "--add-config", "message.max.bytes=99999")
    both.assert_same_output("configs", "--describe", "--entity-type", "brokers")
    both.assert_same_output("configs", "--describe", "--broker", "1")
    both.assert_same_output("configs", "--describe", "--broker", "1", "--all")
    both.assert_same_output("configs", "--describe", "--broker-defaults")
    both.assert_same_output("configs", "--describe", "--broker-logger", "0")
    for entity in (("--broker", "1"), ("--broker-defaults",)):
        # Only our tool removes the setting: a second removal would fail. The removal also fails
        # until the broker has received the setting.
        removal = ("--bootstrap-server", both.cluster.bootstrap_servers, "--alter", *entity)
        wait_until(
            lambda removal=removal: run_kavka("configs", *removal, "--delete-config", "message.max.bytes").code == 0,
            timeout=60, what="the setting to be removed",
        )  # fmt: skip
    both.assert_same_failure("configs", "--describe", "--broker", "one", message="one")


def test_configs_changes_and_prints_group_settings_as_kafkas_tool(both43: SideBySide) -> None:
    both, group = both43, ("--entity-type", "groups", "--entity-name", "{g}")
    added = ("--alter", *group, "--add-config", "consumer.session.timeout.ms=50000,consumer.heartbeat.interval.ms=7000")
    if isinstance(both.cluster, ApacheCluster):
        # 3.9 with ZooKeeper has no settings of groups.
        both.assert_same_failure("configs", *added, message="Unknown resource type 32")
        return
    both.assert_same_output("configs", "--describe", *group)
    both.assert_same_effect("configs", *added)
    for name in both.names.values():
        resource = ConfigResource.group(f"g-{name}")
        both.wait_everywhere(
            lambda admin, r=resource: setting(admin, r, "consumer.heartbeat.interval.ms") == "7000",  # type: ignore[misc]
            f"the settings of {resource.name}",
        )
    both.assert_same_output("configs", "--describe", *group)
    both.assert_same_output("configs", "--describe", "--group", "{g}", "--all")
    both.assert_same_output("configs", "--describe", "--entity-type", "groups", ordered=False)
    both.assert_same_effect("configs", "--describe", "--group", "{g}")
    for invalid in ("consumer.session.timeout.ms=44999", "consumer.heartbeat.interval.ms=15001", "nonsense=1"):
        both.assert_same_failure(
            "configs", "--alter", *group, "--add-config", invalid, message=invalid.partition("=")[0]
        )
    everything = ("--delete-config", "consumer.session.timeout.ms,consumer.heartbeat.interval.ms,nonsense")
    for _ in range(2):
        both.assert_same_effect("configs", "--alter", "--group", "{g}", *everything)
    both.assert_same_output("configs", "--describe", *group)


class Member:
    """A consumer that polls until it is closed."""

    def __init__(self, servers: str, topic: str, group: str, protocol: str) -> None:
        self._stop = threading.Event()
        self.consumer = Consumer(
            bootstrap_servers=servers, group_id=group, client_id="member", auto_offset_reset="earliest",
            group_protocol=protocol, auto_commit_interval_ms=100,
        )  # fmt: skip
        self.consumer.subscribe([topic])
        self.assigned = threading.Event()
        self._thread = threading.Thread(target=self._poll, daemon=True)
        self._thread.start()

    def _poll(self) -> None:
        while not self._stop.is_set():
            self.consumer.poll(0.1)
            if self.consumer.assignment():
                self.assigned.set()
        self.consumer.close()

    def close(self) -> None:
        self._stop.set()
        self._thread.join(60)
        assert not self._thread.is_alive()


def test_consumer_groups_prints_members_and_offsets_as_kafkas_tool(both43: SideBySide) -> None:
    both = both43
    create_topics(both)
    servers, topic = both.cluster.bootstrap_servers, both.names["ours"]
    with Producer(bootstrap_servers=servers) as producer:
        for number in range(30):
            producer.send(topic, b"x", partition=number % 3)
    members = [Member(servers, topic, f"g-{topic}", "classic")]
    with Admin(bootstrap_servers=servers) as admin:
        if admin.describe_features().supported.get("group.version"):
            members.append(Member(servers, topic, f"g-{topic}-new", "consumer"))

        def consumed(group: str) -> bool:
            offsets = admin.list_consumer_group_offsets(group)
            return sum(o.offset for o in offsets.values() if o is not None) == 30

        groups = [f"g-{topic}", f"g-{topic}-new"][: len(members)]
        for group in groups:
            wait_until(lambda group=group: consumed(group), timeout=90, what=f"{group} to commit all")  # type: ignore[misc]
        for option in ("--offsets", "--members", "--state"):
            for group in groups:
                describe = ("consumer-groups", "--describe", "--group", group, option)
                assert group in both.assert_same_output(*describe)
                assert group in both.assert_same_output(*describe, "--verbose")
        both.assert_same_output("consumer-groups", "--list", ordered=False)
        both.assert_same_output("consumer-groups", "--list", "--state", ordered=False)
        both.assert_same_output("consumer-groups", "--list", "--state", "--type", ordered=False)
        for filters in ((), ("--consumer",), ("--group-type", "classic"), ("--protocol", "consumer"), ("--share",)):
            both.assert_same_output("groups", "--list", *filters, ordered=False)
        rejected = run_kavka("consumer-groups", "--bootstrap-server", servers, "--reset-offsets", "--group", groups[0],
                       "--all-topics", "--to-earliest", "--execute")  # fmt: skip
        assert rejected.code == 1
        assert "is inactive, but the current state is Stable" in rejected.err
        for member in members:
            member.close()
        wait_until(
            lambda: admin.describe_consumer_groups(groups[0])[groups[0]].state == "Empty", timeout=60, what="no member"
        )
    both.assert_same_output("consumer-groups", "--describe", "--group", groups[0])
    both.assert_same_output("consumer-groups", "--describe", "--group", groups[0], "--members")
    both.assert_same_output("consumer-groups", "--describe", "--group", groups[0], "--state")


def test_group_offsets_are_reset_with_every_option(both43: SideBySide, tmp_path: Path) -> None:
    both = both43
    create_topics(both)
    servers = both.cluster.bootstrap_servers
    with Producer(bootstrap_servers=servers) as producer:
        for name in both.names.values():
            for number in range(30):
                producer.send(name, b"x", partition=number % 3, timestamp=1_700_000_000_000 + number * 60_000)
    reset = ("consumer-groups", "--reset-offsets", "--group", "{g}", "--topic", "{t}")

    def same(*args: str) -> str:
        return both.assert_same_effect(*reset, *args, ordered=False)

    assert same("--to-latest", "--execute").count(" 10\n") == 3
    assert same("--shift-by", "-4", "--execute").count(" 6\n") == 3
    assert same("--to-current", "--dry-run").count(" 6\n") == 3
    assert same("--to-earliest", "--dry-run").count(" 0\n") == 3
    assert same("--to-offset", "99", "--dry-run").count(" 10\n") == 3
    assert same("--to-datetime", "2023-11-14T22:28:20.000", "--dry-run").count(" 5\n") == 3
    assert same("--to-datetime", "2023-11-14T23:28:20.000+01:00", "--dry-run").count(" 5\n") == 3
    assert "Falling back to latest" in same("--by-duration", "PT1S", "--dry-run")
    assert same("--by-duration", "P7000D", "--dry-run").count(" 0\n") == 3
    partitions = ("consumer-groups", "--reset-offsets", "--group", "{g}", "--topic", "{t}:0,2")
    assert both.assert_same_effect(*partitions, "--to-offset", "3", "--execute", ordered=False).count(" 3\n") == 2
    everything = ("consumer-groups", "--reset-offsets", "--group", "{g}", "--all-topics")
    exported = both.assert_same_effect(*everything, "--to-current", "--dry-run", "--export", ordered=False)
    assert sorted(exported.split()) == [f"{both.names['ours']},{p},{o}" for p, o in ((0, 3), (1, 6), (2, 3))]
    for who, name in both.names.items():
        (tmp_path / f"{who}.csv").write_text(f"{name},0,1\n{name},2,2\n")
    from_file = ("consumer-groups", "--reset-offsets", "--group", "{g}", "--from-file", str(tmp_path / "{who}.csv"))
    both.assert_same_effect(*from_file, "--execute", ordered=False)
    both.assert_same_effect("consumer-groups", "--describe", "--group", "{g}")
    both.assert_same_effect("consumer-groups", "--delete-offsets", "--group", "{g}", "--topic", "{t}:1")
    both.assert_same_effect("consumer-groups", "--delete-offsets", "--group", "{g}", "--topic", "{t}:0,1")
    failed, java = both.run("consumer-groups", "--delete-offsets", "--group", "{g}", "--topic", "{t}:9")
    assert (failed.code, failed.err) == (1, java.out.lstrip("\n").splitlines(keepends=True)[0])
    assert f"{both.names['ours']}   9          Error: unknown topic or partition" in failed.out
    both.assert_same_effect("consumer-groups", "--delete", "--group", "{g}")
    for args, message in (
        (("--describe", "--group", "{g}"), "does not exist"),
        (("--delete", "--group", "{g}"), "could not be deleted"),
        (("--reset-offsets", "--group", "{g}", "--topic", "{t}:9", "--to-earliest"), f"{both.names['ours']}-9"),
    ):
        failed, _ = both.run("consumer-groups", *args, read_only=True)
        assert failed.code == 1
        assert message in failed.err


@pytest.mark.parametrize(
    "args",
    [
        ("--describe",),
        ("--list", "--group", "x"),
        ("--describe", "--group", "x", "--offsets", "--members"),
        ("--reset-offsets", "--group", "x", "--to-earliest", "--dry-run"),
        ("--list", "--state", "nonsense"),
        (),
    ],
)
def test_consumer_groups_rejects_invalid_command_lines(both43: SideBySide, args: tuple[str, ...]) -> None:
    ours, other = both43.run("consumer-groups", *args)
    assert (ours.code, other.code) == (1, 1)
    assert ours.out == ""


def test_streams_applications_are_reset(both39: SideBySide, tmp_path: Path) -> None:
    """A topic and the application that reads it have the same name. The records are old:
    retention.ms=-1 keeps retention from deleting them during the test."""
    both = both39
    create_topics(both, "--config", "retention.ms=-1")
    servers = both.cluster.bootstrap_servers
    with Admin(bootstrap_servers=servers) as admin, Producer(bootstrap_servers=servers) as producer:
        other_topics = [
            f"{name}-{kind}" for name in both.names.values() for kind in ("by-word-repartition", "intermediate")
        ]
        admin.create_topics([NewTopic(name, 1, 1) for name in other_topics])
        both.wait_everywhere(lambda client: set(other_topics) <= set(client.list_topics()), "the applications' topics")
        for name in both.names.values():
            for number in range(30):
                producer.send(name, b"x", partition=number % 3, timestamp=1_700_000_000_000 + number * 60_000)
            producer.send(f"{name}-intermediate", b"x", partition=0)
            admin.alter_consumer_group_offsets(name, {TopicPartition(name, 0): 4})
        producer.flush()
        reset = ("streams-application-reset", "--application-id", "{t}")
        inputs = (*reset, "--input-topics", "{t}")

        def dry_run(*args: str, code: int = 0) -> str:
            return both.assert_same_effect(*args, "--dry-run", ordered=False, code=code)

        assert "Deleting inferred internal topics [" in dry_run(*inputs, "--intermediate-topics", "{t}-intermediate")
        for position in (
            ("--to-latest",), ("--to-offset", "99"), ("--shift-by", "-2"), ("--by-duration", "PT1S"),
            ("--to-datetime", "2023-11-14T22:28:20.000"),
        ):  # fmt: skip
            assert f"Topic: {both.names['ours']} Partition: 2" in dry_run(*inputs, *position)
        for who, name in both.names.items():
            (tmp_path / f"{who}.csv").write_text("".join(f"{name},{number},{number * 10 + 1}\n" for number in range(3)))
        dry_run(*inputs, "--from-file", str(tmp_path / "{who}.csv"))
        dry_run(*reset, "--input-topics", "{t},nothing", "--intermediate-topics", "nothing-either", code=1)
        both.assert_same_failure(
            *reset, "--internal-topics", "{t}-intermediate", message="Invalid topic specified in the --internal"
        )
        members = [Member(servers, name, name, "classic") for name in both.names.values()]
        for name in both.names.values():
            wait_until(lambda name=name: admin.group_state(name) == "Stable", timeout=90, what="a member")  # type: ignore[misc]
        both.assert_same_failure(*inputs, message="is still active and has following members: [")
        for member in members:
            member.close()
        for name in both.names.values():
            wait_until(lambda name=name: admin.group_state(name) == "Empty", timeout=60, what="no member")  # type: ignore[misc]
        both.assert_same_effect(*inputs, "--to-offset", "3", "--intermediate-topics", "{t}-intermediate", ordered=False)
        for name in both.names.values():
            offsets = admin.list_consumer_group_offsets(name)
            expected = {TopicPartition(name, number): 3 for number in range(3)} | {
                TopicPartition(f"{name}-intermediate", 0): 1
            }
            assert {tp: entry.offset for tp, entry in offsets.items() if entry is not None} == expected
        internal_topics = {f"{name}-by-word-repartition" for name in both.names.values()}
        both.wait_everywhere(
            lambda client: not internal_topics & set(client.list_topics()), "the deletion of internal topics"
        )
        assert {f"{name}-intermediate" for name in both.names.values()} <= set(admin.list_topics())


def test_delete_records_and_log_dirs_print_the_output_of_kafkas_tools(both39: SideBySide, tmp_path: Path) -> None:
    both = both39
    create_topics(both)
    with Producer(bootstrap_servers=both.cluster.bootstrap_servers) as producer:
        for name in both.names.values():
            for number in range(9):
                producer.send(name, b"x", partition=number % 3)
    for who, name in both.names.items():
        entries = [{"topic": name, "partition": 0, "offset": 2}, {"topic": name, "partition": 1, "offset": -1}]
        (tmp_path / f"{who}.json").write_text(json.dumps({"version": 1, "partitions": entries}))
    deleted = both.assert_same_effect(
        "delete-records", "--offset-json-file", str(tmp_path / "{who}.json"), ordered=False
    )
    assert deleted.endswith(f"-0\tlow_watermark: 2\npartition: {both.names['ours']}-1\tlow_watermark: 3\n")
    broken = tmp_path / "broken.json"
    broken.write_text('{"partitions": [\n  {"topic": 1,}]}')
    both.assert_same_failure("delete-records", "--offset-json-file", str(broken), message="line 2, column 15")
    both.assert_same_failure("delete-records", "--offset-json-file", str(tmp_path / "nothing"), message="No such file")
    ours, other = both.run("log-dirs", "--describe", "--topic-list", "{t}", read_only=True)
    head, text = ours.out.split("{", 1)
    assert head == other.out.split("{", 1)[0]
    assert sorted_log_dirs(json.loads("{" + text)) == sorted_log_dirs(json.loads("{" + other.out.split("{", 1)[1]))
    both.assert_same_failure("log-dirs", "--describe", "--broker-list", "0,7", message="from --broker-list: 7")


def sorted_log_dirs(log_dirs: dict) -> dict:
    for broker in log_dirs["brokers"]:
        broker["logDirs"].sort(key=lambda directory: directory["logDir"])
        for directory in broker["logDirs"]:
            directory["partitions"].sort(key=lambda entry: entry["partition"])
    log_dirs["brokers"].sort(key=lambda broker: broker["broker"])
    return log_dirs


def test_transactions_prints_the_output_of_kafkas_tool(both39: SideBySide) -> None:
    both = both39
    create_topics(both)
    name = both.names["ours"]
    settings = {"bootstrap.servers": both.cluster.bootstrap_servers, "transactional.id": f"tx-{name}"}
    with Producer(settings) as producer:
        producer.init_transactions()
        producer.begin_transaction()
        producer.send(name, b"x", partition=1).get(30)
        listed = both.assert_same_output("transactions", "list", ordered=False)
        assert "Ongoing" in listed
        both.assert_same_output("transactions", "describe-producers", "--topic", "{t}", "--partition", "1")
        leader = ("--broker-id", "1")
        both.assert_same_output("transactions", "describe-producers", *leader, "--topic", "{t}", "--partition", "1")
        both.assert_same_output("transactions", "find-hanging", "--topic", "{t}")
        hanging = both.assert_same_output(
            "transactions", "find-hanging", "--broker-id", "1", "--max-transaction-timeout", "0"
        )
        assert name not in hanging
        our_output, other = both.run("transactions", "describe", "--transactional-id", "tx-{t}", read_only=True)
        durations = [[line.split() for line in result.out.splitlines()] for result in (our_output, other)]
        for rows in durations:
            assert int(rows[1].pop(7)) >= 0
        assert durations[0] == durations[1]
        servers = both.cluster.bootstrap_servers
        abort = ("transactions", "--bootstrap-server", servers, "abort", "--topic", name)
        ended = run_kavka(*abort, "--partition", "1", "--start-offset", "0")
        assert (ended.code, ended.out, ended.err) == (0, "", "")
        assert "None" in both.assert_same_output(
            "transactions", "describe-producers", "--topic", "{t}", "--partition", "1"
        )
        producer.abort_transaction()
    both.assert_same_failure("transactions", "describe", "--transactional-id", "nothing", message="`nothing`")
    both.assert_same_failure("transactions", "abort", "--topic", "{t}", "--partition", "0", "--start-offset", "3")
    both.assert_same_failure("transactions", "find-hanging", message="requires either --topic or --broker-id")


def test_cluster_and_broker_api_versions_print_the_output_of_kafkas_tools(
    both39: SideBySide, apache43: ApacheTools
) -> None:
    both = both39
    both.assert_same_output("features", "describe")
    servers = both.cluster.bootstrap_servers
    our_output, other = (
        run_kavka("cluster", "cluster-id", "--bootstrap-server", servers),
        both.apache.run("cluster", "cluster-id", "--bootstrap-server", servers),
    )
    assert (our_output.code, our_output.out) == (0, other.out)
    listed, java = (
        run("cluster", "list-endpoints", "--bootstrap-server", servers) for run in (run_kavka, apache43.run)
    )
    assert (listed.code, listed.out) == (0, java.out)
    our_output, other = both.run("broker-api-versions", read_only=True)
    kavka_lines, java_lines = (
        [line.partition(" [")[0].strip(" ,") for line in result.out.splitlines()] for result in (our_output, other)
    )
    assert our_output.code == 0
    # 4.3 renamed the request. Kavka uses the new name.
    java_lines = [line.replace("ListClientMetricsResources", "ListConfigResources") for line in java_lines]
    assert sorted(line for line in java_lines if "UNSUPPORTED" not in line) == sorted(
        line for line in kavka_lines if "UNSUPPORTED" not in line
    )


def test_partitions_are_reassigned_as_by_kafkas_tool(both39: SideBySide, tmp_path: Path) -> None:
    both = both39
    create_topics(both)
    topics = tmp_path / "topics-{who}.json"
    plan = tmp_path / "plan-{who}.json"
    for who, name in both.names.items():
        Path(str(topics).replace("{who}", who)).write_text(json.dumps({"version": 1, "topics": [{"topic": name}]}))
        targets = {0: [2, 1], 1: [1, 2]}
        moves = [{"topic": name, "partition": p, "replicas": replicas} for p, replicas in targets.items()]
        Path(str(plan).replace("{who}", who)).write_text(json.dumps({"version": 1, "partitions": moves}))
    tool = "reassign-partitions"
    generate = ("--generate", "--topics-to-move-json-file", str(topics), "--broker-list", "0,1,2")
    our_output, other = both.run(tool, *generate, read_only=True)
    assert our_output.out.splitlines()[:4] == other.out.splitlines()[:4]
    proposed = json.loads(our_output.out.splitlines()[4])["partitions"]
    assert [len(set(p["replicas"])) for p in proposed] == [2, 2, 2]
    assert {p["replicas"][0] for p in proposed} == {0, 1, 2}
    both.assert_same_output(tool, "--list")
    servers = ("--bootstrap-server", both.cluster.bootstrap_servers)
    started = {}
    for who, run in (("ours", run_kavka), ("java", both.apache.run)):
        file = ("--reassignment-json-file", str(plan).replace("{who}", who))
        started[who] = run(tool, *servers, "--execute", *file, "--throttle", "10000000")
        assert started[who].code == 0, started[who]
        watched = run_kavka(tool, *servers, "--verify", "--watch", *file, "--preserve-throttles")
        assert watched.out.count("is completed.") == 2
    both.assert_equal_except_names(started["ours"].out, started["java"].out)
    assert f"Successfully started partition reassignments for {both.names['ours']}-0" in started["ours"].out
    both.assert_same_effect(tool, "--verify", "--reassignment-json-file", str(plan))
    both.assert_same_output("configs", "--describe", "--topic", "{t}")
    both.assert_same_effect(tool, "--cancel", "--reassignment-json-file", str(plan))
    with Admin(bootstrap_servers=both.cluster.bootstrap_servers) as admin:
        moved = admin.describe_topics(both.names["ours"])[both.names["ours"]].partitions
        assert sorted(node.id for node in moved[0].replicas) == [1, 2]
    (tmp_path / "bad.json").write_text('{"partitions": [\n{"topic": "x"')
    both.assert_same_failure(
        tool, "--execute", "--reassignment-json-file", str(tmp_path / "bad.json"), message="line 2, column 14"
    )
    (tmp_path / "five.json").write_text(
        json.dumps({"partitions": [{"topic": both.names["ours"], "partition": 0, "replicas": [5]}]})
    )
    both.assert_same_failure(tool, "--execute", "--reassignment-json-file", str(tmp_path / "five.json"))
    both.assert_same_failure(tool, "--verify")
    both.assert_same_failure(tool, "--list", "--throttle", "5")
    both.assert_same_failure(tool, "--list", "--generate", message="exactly one action")


def test_replicas_move_between_the_directories_of_a_broker(both39: SideBySide, tmp_path: Path) -> None:
    both = both39
    create_topics(both)
    tool, servers = "reassign-partitions", ("--bootstrap-server", both.cluster.bootstrap_servers)
    disks = {str(path) for path in both.cluster.log_dirs[0]}
    outputs: dict[str, list[str]] = {}
    with Admin(bootstrap_servers=both.cluster.bootstrap_servers) as admin:

        def log_dir(name: str) -> str:
            log_dirs = admin.describe_log_dirs([0], [TopicPartition(name, 0)])[0]
            return next(path for path, description in log_dirs.items() if description.replicas)

        for (who, name), run in zip(both.names.items(), (run_kavka, both.apache.run), strict=True):
            (other,) = disks - {log_dir(name)}
            entry = {"topic": name, "partition": 0, "replicas": [0, 1], "log_dirs": [other, "any"]}
            (tmp_path / f"{who}.json").write_text(json.dumps({"version": 1, "partitions": [entry]}))
            file = ("--reassignment-json-file", str(tmp_path / f"{who}.json"))
            limit = ("--replica-alter-log-dirs-throttle", "10000000")
            started = run(tool, *servers, "--execute", *file, *limit)
            assert started.code == 0, started
            assert f"Successfully started moving log directory to {other} for replica {name}-0" in started.out
            assert run_kavka(tool, *servers, "--verify", "--watch", *file, "--preserve-throttles").code == 0
            assert log_dir(name) == other
            verified = run(tool, *servers, "--verify", *file)
            assert verified.code == 0, verified
            outputs[who] = [text.out.replace(other, "OTHER") for text in (started, verified)]
    for kavka_output, java_output in zip(outputs["ours"], outputs["java"], strict=True):
        both.assert_equal_except_names(kavka_output, java_output)


def test_preferred_leaders_are_elected_after_a_broker_was_stopped(both39: SideBySide) -> None:
    """Stops a broker for some time, so this is one of the last tests."""
    both = both39
    create_topics(both)
    servers, topic = both.cluster.bootstrap_servers, both.names["ours"]
    elect = ("leader-election", "--election-type", "preferred", "--topic", "{t}", "--partition", "2")
    assert both.assert_same_output(*elect) == f"Valid replica already elected for partitions {topic}-2\n"
    both.cluster.stop(2)

    def without_2(admin: Admin) -> bool:
        partitions = admin.describe_topics(topic)[topic].partitions
        return all(2 not in [node.id for node in p.isr] and p.leader is not None for p in partitions)

    both.wait_everywhere(without_2, "leaders other than broker 2")
    for filter_ in ("under-replicated", "unavailable", "under-min-isr", "at-min-isr"):
        both.assert_same_output("topics", "--describe", "--topic", "{t}", f"--{filter_}-partitions")
    both.cluster.start(2)
    both.wait_until_in_sync(3)
    with Admin(bootstrap_servers=servers) as admin:
        assert admin.describe_topics(topic)[topic].partitions[2].leader.id == 0
    assert (
        both.assert_same_effect(*elect)
        == f"Successfully completed leader election (PREFERRED) for partitions {topic}-2\n"
    )
    elected = run_kavka("preferred-replica-election", "--bootstrap-server", servers)
    assert elected.code == 0, elected.err
    our_output, other = both.run(
        "leader-election", "--election-type", "preferred", "--topic", "{t}", "--partition", "9"
    )
    assert (our_output.code, other.code) == (1, 1)
    assert our_output.err == "1 replica(s) could not be elected\n"
    with Admin(bootstrap_servers=servers) as admin:
        wait_until(
            lambda: admin.describe_topics(topic)[topic].partitions[2].leader.id == 2, timeout=30, what="leader 2"
        )


def test_the_option_zookeeper_finds_the_brokers(both39: SideBySide) -> None:
    connect = both39.cluster.zookeeper.connect
    listed = run_kavka("kafka-topics.sh", "--list", "--zookeeper", connect)
    assert listed.code == 0
    assert listed.out == run_kavka("topics", "--list", "--bootstrap-server", both39.cluster.bootstrap_servers).out
    assert "deprecated" in listed.err
    nowhere = run_kavka("topics", "--list", "--zookeeper", f"{connect}/nowhere")
    assert nowhere.code == 1
    assert "no broker is registered" in nowhere.err
