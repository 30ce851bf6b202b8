"""The controller of a real cluster: failover, elections, reassignment and deletion.

Kavka's admin client, Apache's tools of version 3.9.1 and older tools that write to ZooKeeper
request these operations.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from kazoo.client import KazooClient

from kavka import Admin, Consumer, NewTopic, Producer, TopicPartition
from kavka.client.admin.base import AdminError
from kavka.client.admin.types import AlterConfigOp, ConfigResource, ElectionType
from kavka.protocol.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)
from tests.support.cluster import KavkaCluster
from tests.support.java_client import run_tool
from tests.support.messages import Messages
from tests.support.processes import wait_until
from tests.support.zookeeper import ZooKeeper

pytestmark = [pytest.mark.java, pytest.mark.slow, pytest.mark.timeout(300)]

APACHE = "3.9.1"
TOPIC, APPEND = 2, 2
REASSIGN = "org.apache.kafka.tools.reassign.ReassignPartitionsCommand"
ELECT = "org.apache.kafka.tools.LeaderElectionCommand"


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KavkaCluster]:
    folder: Path = tmp_path_factory.mktemp("controller")
    with ZooKeeper(folder / "zookeeper") as zookeeper, KavkaCluster(folder, zookeeper, brokers=4) as brokers:
        yield brokers


@pytest.fixture(autouse=True)
def restart_stopped_brokers(cluster: KavkaCluster) -> None:
    """Start the brokers that an earlier test stopped, and wait until all brokers are registered.
    The session of a paused broker may have expired."""
    stopped = [broker_id for broker_id in cluster.brokers if broker_id not in cluster.alive()]
    if stopped:
        cluster.start(*stopped)
    cluster.wait_for_metadata(cluster.brokers)


@pytest.fixture(scope="module")
def admin(cluster: KavkaCluster) -> Iterator[Admin]:
    with Admin(bootstrap_servers=cluster.bootstrap_servers) as admin_client:
        yield admin_client


@pytest.fixture
def tree(cluster: KavkaCluster) -> Iterator[KazooClient]:
    client = KazooClient(cluster.zookeeper.connect)
    client.start(30)
    yield client
    client.stop()
    client.close()


def create_topic(admin: Admin, name: str, *layout: list[int], configs: dict[str, str] | None = None) -> None:
    admin.create_topics([NewTopic(name, replica_assignments=dict(enumerate(layout)), configs=configs or {})])


def describe(admin: Admin, name: str) -> dict[int, tuple[int, list[int], set[int]]]:
    """Return the leader, replicas and ISR of each partition according to one broker. Other brokers
    may have newer metadata."""
    try:
        description = admin.describe_topics([name])[name]
    except AdminError:
        return {}
    return {
        p.partition: (-1 if p.leader is None else p.leader.id, [n.id for n in p.replicas], {n.id for n in p.isr})
        for p in description.partitions
    }


def wait(condition: Callable[[], bool], what: str, timeout: float = 60) -> None:
    wait_until(condition, timeout=timeout, what=what, interval=0.1)


def wait_for_full_isr(admin: Admin, name: str) -> None:
    def is_full() -> bool:
        partitions = describe(admin, name)
        return bool(partitions) and all(set(replicas) == isr for _, replicas, isr in partitions.values())

    wait(is_full, f"all replicas of {name} in sync")


def wait_for_leaders(admin: Admin, name: str, *expected: int) -> None:
    wait(
        lambda: [leader for leader, _, _ in describe(admin, name).values()] == list(expected), f"the leaders {expected}"
    )


def wait_for_replicas(admin: Admin, name: str, *expected: int, partition: int = 0) -> None:
    def has_replicas() -> bool:
        return describe(admin, name).get(partition, (-1, [], set()))[1] == list(expected)

    wait(has_replicas, f"the replicas {expected} of {name}")


def find_controller(admin: Admin) -> int:
    controllers: list[int] = []

    def is_elected() -> bool:
        node = admin.describe_cluster().controller
        if node is not None:
            controllers.append(node.id)
        return bool(controllers)

    wait(is_elected, "a controller")
    return controllers[-1]


def read_all(cluster: KavkaCluster, name: str, partitions: int, count: int) -> list[int]:
    with Consumer(bootstrap_servers=cluster.bootstrap_servers, auto_offset_reset="earliest") as consumer:
        consumer.assign([TopicPartition(name, p) for p in range(partitions)])
        consumer.seek_to_beginning()
        values: list[int] = []
        deadline = time.monotonic() + 60
        while len(values) < count and time.monotonic() < deadline:
            values += [int(record.value) for record in consumer.poll(0.5)]
        values += [int(record.value) for record in consumer.poll(0.5)]
    return values


class Load:
    """Produces consecutive numbers until it is stopped. `sent` counts the acknowledged records."""

    def __init__(self, cluster: KavkaCluster, name: str, partitions: int) -> None:
        self.sent = 0
        self._stop = threading.Event()
        self._error: BaseException | None = None
        self._servers, self._name, self._partitions = cluster.bootstrap_servers, name, partitions
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            with Producer(bootstrap_servers=self._servers, acks="all") as producer:
                while not self._stop.is_set():
                    futures = [
                        producer.send(self._name, value=b"%d" % n, partition=n % self._partitions)
                        for n in range(self.sent, self.sent + 20)
                    ]
                    for future in futures:
                        future.get(60)
                    self.sent += 20
                    time.sleep(0.02)
        except BaseException as error:
            self._error = error

    def stop(self) -> int:
        self._stop.set()
        self._thread.join(90)
        assert self._error is None, self._error
        return self.sent


def has_files(cluster: KavkaCluster, broker_id: int, name: str) -> bool:
    return any((folder / f"{name}-0").exists() for folder in cluster.log_dirs[broker_id])


def run_apache_tool(cluster: KavkaCluster, name: str, *args: str, via: int = 0) -> str:
    servers = cluster.brokers[via].bootstrap_servers
    return run_tool(APACHE, name, "--bootstrap-server", servers, *args, timeout=120).stdout


def test_another_broker_becomes_controller_when_the_controller_is_killed(cluster: KavkaCluster, admin: Admin) -> None:
    first_controller = find_controller(admin)
    others = [n for n in cluster.brokers if n != first_controller]
    create_topic(admin, "failover", [first_controller, *others[:2]], [others[0], first_controller, others[1]])
    wait_for_full_isr(admin, "failover")
    load = Load(cluster, "failover", 2)
    wait(lambda: load.sent > 100, "some load")
    cluster.kill(first_controller)
    wait(lambda: find_controller(admin) != first_controller, "another controller")
    wait_for_leaders(admin, "failover", others[0], others[0])
    create_topic(admin, "created-after-failover", others[:2])
    previous_count = load.sent
    wait(lambda: load.sent > previous_count + 100, "more load")
    cluster.start(first_controller)
    wait_for_full_isr(admin, "failover")
    sent = load.stop()
    assert sorted(read_all(cluster, "failover", 2, sent)) == list(range(sent))


def test_no_acknowledged_record_is_lost_when_the_controller_restarts_with_a_truncated_log(
    cluster: KavkaCluster, admin: Admin
) -> None:
    """A power failure can truncate a log. The broker restarts before its session expires, and
    another controller is elected in the meantime."""
    first_controller = find_controller(admin)
    other = next(number for number in cluster.brokers if number != first_controller)
    create_topic(admin, "power", [first_controller, other])
    wait_for_full_isr(admin, "power")
    wait_for_leaders(admin, "power", first_controller)

    def send(numbers: range) -> None:
        with Producer(bootstrap_servers=cluster.bootstrap_servers, batch_size=500) as producer:
            futures = [producer.send("power", str(number).encode()) for number in numbers]
            for future in futures:
                future.result(60)

    send(range(1000))
    cluster.kill(first_controller)
    [segment] = [path for folder in cluster.log_dirs[first_controller] for path in folder.glob("power-0/*.log")]
    with segment.open("r+b") as file:
        file.truncate(segment.stat().st_size // 2)
    cluster.start(first_controller)
    send(range(1000, 2000))
    wait_for_full_isr(admin, "power")
    assert read_all(cluster, "power", 1, 2000) == list(range(2000))
    folders = [folder for number in (first_controller, other) for folder in cluster.log_dirs[number]]
    assert len({path.read_bytes() for folder in folders for path in folder.glob("power-0/*.log")}) == 1


def test_partitions_are_moved_under_load_without_loss(cluster: KavkaCluster, admin: Admin) -> None:
    create_topic(admin, "moved", [0, 1], [1, 0])
    load = Load(cluster, "moved", 2)
    wait(lambda: load.sent > 200, "some load")
    partitions = [TopicPartition("moved", p) for p in range(2)]
    for replicas in ([2, 3], [3, 1], [1, 0, 2]):
        admin.alter_partition_reassignments(dict.fromkeys(partitions, replicas))
        wait(lambda: not admin.list_partition_reassignments(partitions), f"the move to {replicas}")
        for partition in partitions:
            wait_for_replicas(admin, "moved", *replicas, partition=partition.partition)
        wait_for_full_isr(admin, "moved")
    sent = load.stop()
    assert sorted(read_all(cluster, "moved", 2, sent)) == list(range(sent))
    wait(lambda: not has_files(cluster, 3, "moved"), "the files of the removed replica are deleted")
    assert all(has_files(cluster, number, "moved") for number in (0, 1, 2))


def test_another_controller_completes_a_reassignment(cluster: KavkaCluster, admin: Admin) -> None:
    first_controller = find_controller(admin)
    paused, *replicas = [n for n in cluster.brokers if n != first_controller]
    create_topic(admin, "reassigned", replicas)
    partition = TopicPartition("reassigned", 0)
    with Producer(bootstrap_servers=cluster.bootstrap_servers) as producer:
        for future in [producer.send("reassigned", value=b"%d" % n, partition=0) for n in range(500)]:
            future.get(30)
    cluster.pause(paused)
    try:
        admin.alter_partition_reassignments({partition: [paused, replicas[0]]})
        assert admin.list_partition_reassignments()[partition].adding_replicas == (paused,)
        cluster.kill(first_controller)
        time.sleep(1)
    finally:
        cluster.resume(paused)
    wait(lambda: find_controller(admin) != first_controller, "another controller")
    wait_for_replicas(admin, "reassigned", paused, replicas[0])
    wait(lambda: partition not in admin.list_partition_reassignments(), "no active reassignment")
    wait_for_full_isr(admin, "reassigned")
    assert sorted(read_all(cluster, "reassigned", 1, 500)) == list(range(500))


def test_apaches_tool_moves_partitions_and_lists_and_cancels_moves(
    cluster: KavkaCluster, admin: Admin, tmp_path: Path
) -> None:
    first_controller = find_controller(admin)
    other, new_replica, paused = [n for n in cluster.brokers if n != first_controller]
    create_topic(admin, "by-tool", [first_controller, other], [other, first_controller])
    file = tmp_path / "plan.json"

    def write_plan(*assignments: list[int]) -> None:
        rows = [
            {"topic": "by-tool", "partition": p, "replicas": replicas, "log_dirs": ["any", "any"]}
            for p, replicas in enumerate(assignments)
        ]
        file.write_text(json.dumps({"version": 1, "partitions": rows}))

    def reassign(*args: str) -> str:
        return run_apache_tool(cluster, REASSIGN, "--reassignment-json-file", str(file), *args, via=first_controller)

    write_plan([new_replica, paused], [paused, new_replica])
    cluster.pause(paused)
    try:
        assert "Successfully started partition reassignments for by-tool-0,by-tool-1" in reassign("--execute")
        output = run_apache_tool(cluster, REASSIGN, "--list", via=first_controller)
        replicas = f"{new_replica},{paused},{first_controller},{other}"
        assert (
            f"by-tool-0: replicas: {replicas}. adding: {new_replica},{paused}. removing: {first_controller},{other}."
            in output
        )
    finally:
        cluster.resume(paused)
    wait(lambda: not admin.list_partition_reassignments(), "the end of the moves")
    verification = reassign("--verify")
    assert "Reassignment of partition by-tool-0 is completed." in verification
    assert "Reassignment of partition by-tool-1 is completed." in verification
    write_plan([other, first_controller])
    cluster.pause(other)
    try:
        reassign("--execute")
        description = run_apache_tool(cluster, "topics", "--describe", "--topic", "by-tool", via=first_controller)
        assert (
            f"Adding Replicas: {other},{first_controller}" in description
            and f"Removing Replicas: {new_replica},{paused}" in description
        )
        output = reassign("--cancel", "--preserve-throttles")
        assert "Successfully cancelled partition reassignment for: by-tool-0" in output
    finally:
        cluster.resume(other)
    wait(
        lambda: set(describe(admin, "by-tool").get(0, (-1, [], set()))[1]) == {new_replica, paused},
        "the original replicas",
    )
    wait_for_full_isr(admin, "by-tool")


def test_settings_altered_concurrently_through_several_brokers_are_all_stored(
    cluster: KavkaCluster, admin: Admin
) -> None:
    create_topic(admin, "altered", [0])
    name, values_per_broker = "leader.replication.throttled.replicas", 15
    errors: list[int] = []

    def append(messages: Messages, value: str) -> int:
        config = AlterableConfig(name=name, config_operation=APPEND, value=value)
        resource = AlterConfigsResource(resource_type=TOPIC, resource_name="altered", configs=[config])
        response = messages.call(IncrementalAlterConfigsRequest(resources=[resource]), 1)
        return int(response.responses[0].error_code)

    def alter(broker_id: int) -> None:
        with Messages(cluster.addresses[broker_id]) as messages:
            wait(lambda: append(messages, f"0:{broker_id}") == 0, f"broker {broker_id} has metadata of the topic")
            errors.extend(filter(None, (append(messages, f"{item}:{broker_id}") for item in range(values_per_broker))))

    threads = [threading.Thread(target=alter, args=(broker_id,)) for broker_id in cluster.brokers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert not errors
    resource = ConfigResource.topic("altered")

    def current_values() -> set[str]:
        return set(filter(None, (admin.describe_configs([resource])[resource][name].value or "").split(",")))

    expected = {f"{item}:{broker_id}" for broker_id in cluster.brokers for item in range(values_per_broker)}
    wait(lambda: current_values() == expected, f"{len(expected)} values")


def test_preferred_leaders_are_elected_by_both_tools(cluster: KavkaCluster, admin: Admin) -> None:
    create_topic(admin, "preferred", [1, 2], [2, 1], [1, 0])
    wait_for_full_isr(admin, "preferred")
    for tool in ("apache", "kavka"):
        cluster.stop(1)
        wait_for_leaders(admin, "preferred", 2, 2, 0)
        cluster.start(1)
        wait_for_full_isr(admin, "preferred")
        wait_for_leaders(admin, "preferred", 2, 2, 0)
        if tool == "apache":
            output = run_apache_tool(cluster, ELECT, "--election-type", "preferred", "--all-topic-partitions")
            assert "Successfully completed leader election (PREFERRED)" in output and "preferred-0" in output
        else:
            results = admin.elect_leaders(ElectionType.PREFERRED)
            assert results[TopicPartition("preferred", 0)] is None and TopicPartition("preferred", 1) not in results
        wait_for_leaders(admin, "preferred", 1, 2, 1)


def test_znodes_written_by_old_tools_start_reassignments_and_elections(
    cluster: KavkaCluster, admin: Admin, tree: KazooClient
) -> None:
    create_topic(admin, "old-tools", [0, 1])
    wait_for_full_isr(admin, "old-tools")
    plan = {"version": 1, "partitions": [{"topic": "old-tools", "partition": 0, "replicas": [1, 2]}]}
    tree.create("/admin/reassign_partitions", json.dumps(plan).encode())
    wait(lambda: tree.exists("/admin/reassign_partitions") is None, "the end of the move")
    wait_for_replicas(admin, "old-tools", 1, 2)
    wait_for_full_isr(admin, "old-tools")
    wait_for_leaders(admin, "old-tools", 1)
    plan = {"version": 1, "partitions": [{"topic": "old-tools", "partition": 0, "replicas": [2, 1]}]}
    tree.create("/admin/reassign_partitions", json.dumps(plan).encode())
    wait_for_replicas(admin, "old-tools", 2, 1)
    wait(lambda: tree.exists("/admin/reassign_partitions") is None, "the znode is removed")
    request = {"version": 1, "partitions": [{"topic": "old-tools", "partition": 0}]}
    tree.create("/admin/preferred_replica_election", json.dumps(request).encode())
    wait(lambda: tree.exists("/admin/preferred_replica_election") is None, "the end of the election")
    wait_for_leaders(admin, "old-tools", 2)


def test_a_topic_is_deleted_while_one_of_its_brokers_is_down(
    cluster: KavkaCluster, admin: Admin, tree: KazooClient
) -> None:
    create_topic(admin, "deleted", [1, 2, 3], [2, 3, 1])
    wait_for_full_isr(admin, "deleted")
    cluster.kill(3)
    wait(lambda: all(3 not in isr for _, _, isr in describe(admin, "deleted").values()), "an ISR without broker 3")
    admin.delete_topics(["deleted"])
    wait(lambda: "deleted" not in admin.list_topics(), "the topic is not listed")
    wait(lambda: not has_files(cluster, 1, "deleted") and not has_files(cluster, 2, "deleted"), "the files are deleted")
    assert tree.exists("/brokers/topics/deleted") and tree.exists("/admin/delete_topics/deleted")
    assert has_files(cluster, 3, "deleted")
    cluster.start(3)
    wait(lambda: tree.exists("/admin/delete_topics/deleted") is None, "the end of the deletion")
    assert tree.exists("/brokers/topics/deleted") is None and tree.exists("/config/topics/deleted") is None
    wait(lambda: not has_files(cluster, 3, "deleted"), "the last files are deleted")
    create_topic(admin, "deleted", [3, 1])
    wait_for_full_isr(admin, "deleted")


def test_an_unclean_leader_is_elected_when_the_topic_allows_it(cluster: KavkaCluster, admin: Admin) -> None:
    create_topic(admin, "unclean", [1, 2])
    wait_for_full_isr(admin, "unclean")
    cluster.stop(2)
    with Producer(bootstrap_servers=cluster.bootstrap_servers, acks="all") as producer:
        producer.send("unclean", value=b"0", partition=0).get(30)
    cluster.kill(1)
    cluster.start(2)
    wait_for_leaders(admin, "unclean", -1)
    resource = ConfigResource.topic("unclean")
    admin.incremental_alter_configs({resource: [AlterConfigOp("unclean.leader.election.enable", "true")]})
    wait_for_leaders(admin, "unclean", 2)
    cluster.start(1)
    wait_for_full_isr(admin, "unclean")


def test_the_znodes_have_kafkas_format(cluster: KavkaCluster, admin: Admin, tree: KazooClient) -> None:
    create_topic(admin, "shape", [3, 0])
    state, stat = tree.get("/brokers/topics/shape/partitions/0/state")
    epoch = int(tree.get("/controller_epoch")[0])
    assert json.loads(state) == {"controller_epoch": epoch, "leader": 3, "version": 1, "leader_epoch": 0, "isr": [3, 0]}
    assert stat.version == 0
    node = json.loads(tree.get("/controller")[0])
    assert node["brokerid"] == find_controller(admin) and node["version"] == 2 and node["kraftControllerEpoch"] == -1
