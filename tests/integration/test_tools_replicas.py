"""The replica-verification tool, on Kavka and Apache Kafka clusters of three brokers."""

from __future__ import annotations

import re
import signal
import subprocess
from collections.abc import Iterator

import pytest

from kavka import Admin, NewTopic, Producer
from tests.support.cluster import ApacheCluster, Cluster, KavkaCluster
from tests.support.java_client import tool_command
from tests.support.processes import dying_with_parent
from tests.support.tools import kavka_command
from tests.support.zookeeper import ZooKeeper

pytestmark = [pytest.mark.java, pytest.mark.timeout(300), pytest.mark.usefixtures("java_parts")]


@pytest.fixture(scope="module", params=["kavka", "apache"])
def cluster(
    request: pytest.FixtureRequest, java_parts: None, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Cluster]:
    folder = tmp_path_factory.mktemp(f"replicas-{request.param}")
    zookeeper = ZooKeeper(folder / "zookeeper")
    cluster_class = {"kavka": KavkaCluster, "apache": ApacheCluster}[request.param]
    try:
        with cluster_class(folder / "brokers", zookeeper) as cluster:
            yield cluster
    finally:
        zookeeper.kill()


def test_replica_verification_finds_no_lag(cluster: Cluster) -> None:
    with Admin(bootstrap_servers=cluster.bootstrap_servers) as admin:
        admin.create_topics([NewTopic("replicated", 2, 3)])
    with Producer(bootstrap_servers=cluster.bootstrap_servers, acks="all", batch_size=500) as producer:
        for number in range(2000):
            producer.send("replicated", f"record {number}", partition=number % 2)
    args = (
        "--broker-list", cluster.bootstrap_servers, "--topics-include", "replicated", "--time", "-2",
        "--report-interval-ms", "500",
    )  # fmt: skip
    for command in (kavka_command("replica-verification", *args), tool_command("3.9.1", "replica-verification", *args)):
        process = subprocess.Popen(
            dying_with_parent(command), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        assert process.stdout is not None
        assert process.stdout.readline().endswith(": verification process is started\n")
        pattern = r"\S+ \S+: max lag is 0 for partition replicated-[01] at offset 1000 among 2 partitions\n"
        line = process.stdout.readline()
        while not re.fullmatch(pattern, line):
            assert re.search(r": max lag is \d+ for partition ", line), line
            line = process.stdout.readline()
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=30)
        assert process.returncode == 130
