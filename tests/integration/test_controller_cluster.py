"""The controller of a real cluster: failover, elections, reassignment and deletion.

Asked by Kavka's own admin client, by Apache's tools of 3.9.1, and through ZooKeeper as still older
tools did.
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
def all_alive(cluster: KavkaCluster) -> None:
    """Whatever the test before did: a broker that was paused may have to sign in again on a busy
    machine."""
    stopped = [number for number in cluster.brokers if number not in cluster.alive()]
    if stopped:
        cluster.start(*stopped)
    cluster.wait_until_known(cluster.brokers)


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


def create(admin: Admin, name: str, *layout: list[int], configs: dict[str, str] | None = None) -> None:
    admin.create_topics([NewTopic(name, replica_assignments=dict(enumerate(layout)), configs=configs or {})])


def leaders(admin: Admin, name: str) -> dict[int, tuple[int, list[int], set[int]]]:
    """Leader, replicas and ISR of each partition in the metadata of one broker; other brokers
    may have newer metadata."""
    try:
        topics = admin.describe_topics([name])[name]
    except AdminError:
        return {}
    return {
        p.partition: (-1 if p.leader is None else p.leader.id, [n.id for n in p.replicas], {n.id for n in p.isr})
        for p in topics.partitions
    }


def until(condition: Callable[[], bool], what: str, timeout: float = 60) -> None:
    wait_until(condition, timeout=timeout, what=what, interval=0.1)


def in_sync(admin: Admin, name: str) -> None:
    def full() -> bool:
        current = leaders(admin, name)
        return bool(current) and all(set(replicas) == isr for _, replicas, isr in current.values())

    until(full, f"{name} in sync")


def led_by(admin: Admin, name: str, *expected: int) -> None:
    until(lambda: [leader for leader, _, _ in leaders(admin, name).values()] == list(expected), f"{expected} to lead")


def held_by(admin: Admin, name: str, *expected: int, partition: int = 0) -> None:
    def held() -> bool:
        return leaders(admin, name).get(partition, (-1, [], set()))[1] == list(expected)

    until(held, f"{expected} to hold {name}")


def controller(admin: Admin) -> int:
    controllers: list[int] = []

    def is_elected() -> bool:
        node = admin.describe_cluster().controller
        if node is not None:
            controllers.append(node.id)
        return bool(controllers)

    until(is_elected, "a controller")
    return controllers[-1]


def read_all(cluster: KavkaCluster, name: str, partitions: int, count: int) -> list[int]:
    with Consumer(bootstrap_servers=cluster.bootstrap_servers, auto_offset_reset="earliest") as consumer:
        consumer.assign([TopicPartition(name, p) for p in range(partitions)])
        consumer.seek_to_beginning()
        values: list[int] = []
        end = time.monotonic() + 60
        while len(values) < count and time.monotonic() < end:
            values += [int(record.value) for record in consumer.poll(0.5)]
        values += [int(record.value) for record in consumer.poll(0.5)]
    return values


class Load:
    """Sends numbers all the time; what was acknowledged is known at the end."""

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
                    some = [
                        producer.send(self._name, value=b"%d" % n, partition=n % self._partitions)
                        for n in range(self.sent, self.sent + 20)
                    ]
                    for future in some:
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


def holds(cluster: KavkaCluster, number: int, name: str) -> bool:
    return any((folder / f"{name}-0").exists() for folder in cluster.log_dirs[number])


def tool(cluster: KavkaCluster, name: str, *args: str, via: int = 0) -> str:
    servers = cluster.brokers[via].bootstrap_servers
    return run_tool(APACHE, name, "--bootstrap-server", servers, *args, timeout=120).stdout


def test_another_controller_continues_when_the_first_is_killed(cluster: KavkaCluster, admin: Admin) -> None:
    first = controller(admin)
    others = [n for n in cluster.brokers if n != first]
    create(admin, "led-by-it", [first, *others[:2]], [others[0], first, others[1]])
    in_sync(admin, "led-by-it")
    load = Load(cluster, "led-by-it", 2)
    until(lambda: load.sent > 100, "some load")
    cluster.kill(first)
    until(lambda: controller(admin) != first, "another controller")
    led_by(admin, "led-by-it", others[0], others[0])
    create(admin, "made-after", others[:2])
    before = load.sent
    until(lambda: load.sent > before + 100, "load that goes on")
    cluster.start(first)
    in_sync(admin, "led-by-it")
    sent = load.stop()
    assert sorted(read_all(cluster, "led-by-it", 2, sent)) == list(range(sent))


def test_nothing_acknowledged_is_lost_when_the_controller_loses_the_end_of_its_log_and_is_back_at_once(
    cluster: KavkaCluster, admin: Admin
) -> None:
    """As after a power failure: it restarts within its session, and another controller is elected
    meanwhile."""
    first = controller(admin)
    other = next(number for number in cluster.brokers if number != first)
    create(admin, "power", [first, other])
    in_sync(admin, "power")
    led_by(admin, "power", first)

    def send(numbers: range) -> None:
        with Producer(bootstrap_servers=cluster.bootstrap_servers, batch_size=500) as producer:
            futures = [producer.send("power", str(number).encode()) for number in numbers]
            for future in futures:
                future.result(60)

    send(range(1000))
    cluster.kill(first)
    [segment] = [path for folder in cluster.log_dirs[first] for path in folder.glob("power-0/*.log")]
    with segment.open("r+b") as file:
        file.truncate(segment.stat().st_size // 2)
    cluster.start(first)
    send(range(1000, 2000))
    in_sync(admin, "power")
    assert read_all(cluster, "power", 1, 2000) == list(range(2000))
    folders = [folder for number in (first, other) for folder in cluster.log_dirs[number]]
    assert len({path.read_bytes() for folder in folders for path in folder.glob("power-0/*.log")}) == 1


def test_partitions_are_moved_under_load_and_nothing_is_lost(cluster: KavkaCluster, admin: Admin) -> None:
    create(admin, "moved", [0, 1], [1, 0])
    load = Load(cluster, "moved", 2)
    until(lambda: load.sent > 200, "some load")
    tps = [TopicPartition("moved", p) for p in range(2)]
    for target in ([2, 3], [3, 1], [1, 0, 2]):
        admin.alter_partition_reassignments(dict.fromkeys(tps, target))
        until(lambda: not admin.list_partition_reassignments(tps), f"the move to {target}")
        for tp in tps:
            held_by(admin, "moved", *target, partition=tp.partition)
        in_sync(admin, "moved")
    sent = load.stop()
    assert sorted(read_all(cluster, "moved", 2, sent)) == list(range(sent))
    until(lambda: not holds(cluster, 3, "moved"), "the files of the old holder to go")
    assert all(holds(cluster, number, "moved") for number in (0, 1, 2))


def test_a_move_survives_its_controller(cluster: KavkaCluster, admin: Admin) -> None:
    first = controller(admin)
    slow, *rest = [n for n in cluster.brokers if n != first]
    create(admin, "carried-on", rest)
    tp = TopicPartition("carried-on", 0)
    with Producer(bootstrap_servers=cluster.bootstrap_servers) as producer:
        for future in [producer.send("carried-on", value=b"%d" % n, partition=0) for n in range(500)]:
            future.get(30)
    cluster.pause(slow)
    try:
        admin.alter_partition_reassignments({tp: [slow, rest[0]]})
        assert admin.list_partition_reassignments()[tp].adding_replicas == (slow,)
        cluster.kill(first)
        time.sleep(1)
    finally:
        cluster.resume(slow)
    until(lambda: controller(admin) != first, "another controller")
    held_by(admin, "carried-on", slow, rest[0])
    until(lambda: tp not in admin.list_partition_reassignments(), "nothing under way")
    in_sync(admin, "carried-on")
    assert sorted(read_all(cluster, "carried-on", 1, 500)) == list(range(500))


def test_apaches_tool_moves_partitions_shows_and_cancels_it(
    cluster: KavkaCluster, admin: Admin, tmp_path: Path
) -> None:
    first = controller(admin)
    other, new, slow = [n for n in cluster.brokers if n != first]
    create(admin, "by-tool", [first, other], [other, first])
    file = tmp_path / "plan.json"

    def plan(*targets: list[int]) -> None:
        rows = [
            {"topic": "by-tool", "partition": p, "replicas": target, "log_dirs": ["any", "any"]}
            for p, target in enumerate(targets)
        ]
        file.write_text(json.dumps({"version": 1, "partitions": rows}))

    def reassign(*args: str) -> str:
        return tool(cluster, REASSIGN, "--reassignment-json-file", str(file), *args, via=first)

    plan([new, slow], [slow, new])
    cluster.pause(slow)
    try:
        assert "Successfully started partition reassignments for by-tool-0,by-tool-1" in reassign("--execute")
        listed = tool(cluster, REASSIGN, "--list", via=first)
        everybody = f"{new},{slow},{first},{other}"
        assert f"by-tool-0: replicas: {everybody}. adding: {new},{slow}. removing: {first},{other}." in listed
    finally:
        cluster.resume(slow)
    until(lambda: not admin.list_partition_reassignments(), "the moves to be done")
    verified = reassign("--verify")
    assert "Reassignment of partition by-tool-0 is completed." in verified
    assert "Reassignment of partition by-tool-1 is completed." in verified
    plan([other, first])
    cluster.pause(other)
    try:
        reassign("--execute")
        described = tool(cluster, "topics", "--describe", "--topic", "by-tool", via=first)
        assert f"Adding Replicas: {other},{first}" in described and f"Removing Replicas: {new},{slow}" in described
        cancelled = reassign("--cancel", "--preserve-throttles")
        assert "Successfully cancelled partition reassignment for: by-tool-0" in cancelled
    finally:
        cluster.resume(other)
    until(lambda: set(leaders(admin, "by-tool").get(0, (-1, [], set()))[1]) == {new, slow}, "the old holders")
    in_sync(admin, "by-tool")


def test_settings_altered_through_several_brokers_at_once_are_all_kept(cluster: KavkaCluster, admin: Admin) -> None:
    create(admin, "altered", [0])
    name, each = "leader.replication.throttled.replicas", 15
    failed: list[int] = []

    def append(messages: Messages, value: str) -> int:
        config = AlterableConfig(name=name, config_operation=APPEND, value=value)
        resource = AlterConfigsResource(resource_type=TOPIC, resource_name="altered", configs=[config])
        response = messages.call(IncrementalAlterConfigsRequest(resources=[resource]), 1)
        return int(response.responses[0].error_code)

    def alter(number: int) -> None:
        with Messages(cluster.addresses[number]) as messages:
            until(lambda: append(messages, f"0:{number}") == 0, f"broker {number} to know the topic")
            failed.extend(filter(None, (append(messages, f"{item}:{number}") for item in range(each))))

    threads = [threading.Thread(target=alter, args=(number,)) for number in cluster.brokers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert not failed
    resource = ConfigResource.topic("altered")

    def current_names() -> set[str]:
        return set(filter(None, (admin.describe_configs([resource])[resource][name].value or "").split(",")))

    expected = {f"{item}:{number}" for number in cluster.brokers for item in range(each)}
    until(lambda: current_names() == expected, f"{len(expected)} values")


def test_preferred_leaders_are_elected_by_both_tools(cluster: KavkaCluster, admin: Admin) -> None:
    create(admin, "preferred", [1, 2], [2, 1], [1, 0])
    in_sync(admin, "preferred")
    for asked_by in ("apache", "kavka"):
        cluster.stop(1)
        led_by(admin, "preferred", 2, 2, 0)
        cluster.start(1)
        in_sync(admin, "preferred")
        led_by(admin, "preferred", 2, 2, 0)
        if asked_by == "apache":
            output = tool(cluster, ELECT, "--election-type", "preferred", "--all-topic-partitions")
            assert "Successfully completed leader election (PREFERRED)" in output and "preferred-0" in output
        else:
            results = admin.elect_leaders(ElectionType.PREFERRED)
            assert results[TopicPartition("preferred", 0)] is None and TopicPartition("preferred", 1) not in results
        led_by(admin, "preferred", 1, 2, 1)


def test_the_nodes_of_old_tools_are_followed(cluster: KavkaCluster, admin: Admin, tree: KazooClient) -> None:
    create(admin, "old-way", [0, 1])
    in_sync(admin, "old-way")
    plan = {"version": 1, "partitions": [{"topic": "old-way", "partition": 0, "replicas": [1, 2]}]}
    tree.create("/admin/reassign_partitions", json.dumps(plan).encode())
    until(lambda: tree.exists("/admin/reassign_partitions") is None, "the move to be done")
    held_by(admin, "old-way", 1, 2)
    in_sync(admin, "old-way")
    led_by(admin, "old-way", 1)
    plan = {"version": 1, "partitions": [{"topic": "old-way", "partition": 0, "replicas": [2, 1]}]}
    tree.create("/admin/reassign_partitions", json.dumps(plan).encode())
    held_by(admin, "old-way", 2, 1)
    until(lambda: tree.exists("/admin/reassign_partitions") is None, "the node to go")
    request = {"version": 1, "partitions": [{"topic": "old-way", "partition": 0}]}
    tree.create("/admin/preferred_replica_election", json.dumps(request).encode())
    until(lambda: tree.exists("/admin/preferred_replica_election") is None, "the election to be held")
    led_by(admin, "old-way", 2)


def test_a_topic_is_deleted_while_one_of_its_brokers_is_down(
    cluster: KavkaCluster, admin: Admin, tree: KazooClient
) -> None:
    create(admin, "deleted", [1, 2, 3], [2, 3, 1])
    in_sync(admin, "deleted")
    cluster.kill(3)
    until(lambda: all(3 not in isr for _, _, isr in leaders(admin, "deleted").values()), "the ISR without it")
    admin.delete_topics(["deleted"])
    until(lambda: "deleted" not in admin.list_topics(), "the topic to be gone for clients")
    until(lambda: not holds(cluster, 1, "deleted") and not holds(cluster, 2, "deleted"), "the files to go")
    assert tree.exists("/brokers/topics/deleted") and tree.exists("/admin/delete_topics/deleted")
    assert holds(cluster, 3, "deleted")
    cluster.start(3)
    until(lambda: tree.exists("/admin/delete_topics/deleted") is None, "the deletion to be finished")
    assert tree.exists("/brokers/topics/deleted") is None and tree.exists("/config/topics/deleted") is None
    until(lambda: not holds(cluster, 3, "deleted"), "the last files to go")
    create(admin, "deleted", [3, 1])
    in_sync(admin, "deleted")


def test_a_topic_that_may_lose_records_finds_a_leader_when_it_is_allowed_to(
    cluster: KavkaCluster, admin: Admin
) -> None:
    create(admin, "unclean", [1, 2])
    in_sync(admin, "unclean")
    cluster.stop(2)
    with Producer(bootstrap_servers=cluster.bootstrap_servers, acks="all") as producer:
        producer.send("unclean", value=b"0", partition=0).get(30)
    cluster.kill(1)
    cluster.start(2)
    led_by(admin, "unclean", -1)
    resource = ConfigResource.topic("unclean")
    admin.incremental_alter_configs({resource: [AlterConfigOp("unclean.leader.election.enable", "true")]})
    led_by(admin, "unclean", 2)
    cluster.start(1)
    in_sync(admin, "unclean")


def test_the_registered_nodes_of_a_cluster_are_kafkas(cluster: KavkaCluster, admin: Admin, tree: KazooClient) -> None:
    create(admin, "shape", [3, 0])
    state, stat = tree.get("/brokers/topics/shape/partitions/0/state")
    epoch = int(tree.get("/controller_epoch")[0])
    assert json.loads(state) == {"controller_epoch": epoch, "leader": 3, "version": 1, "leader_epoch": 0, "isr": [3, 0]}
    assert stat.version == 0
    node = json.loads(tree.get("/controller")[0])
    assert node["brokerid"] == controller(admin) and node["version"] == 2 and node["kraftControllerEpoch"] == -1
