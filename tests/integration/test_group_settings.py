"""Settings of groups: the commands of docs/configuration.md work, and a crash loses no setting."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from kavka import Admin, ConfigResource
from kavka.protocol.messages.consumer_group_heartbeat import ConsumerGroupHeartbeatRequest
from tests.support.kavka_process import KavkaProcess
from tests.support.messages import Messages
from tests.support.processes import wait_until
from tests.support.tools import run_kavka

ROOT = Path(__file__).resolve().parents[2]

pytestmark = pytest.mark.timeout(300)


def documented_commands() -> list[list[str]]:
    section = (ROOT / "docs" / "configuration.md").read_text().split("## Groups", 1)[1]
    (block,) = re.findall(r"```\n(.*?)```", section.split("\n## ")[0], re.DOTALL)
    return [shlex.split(line) for line in block.splitlines()]


def heartbeat_interval_ms(broker: KavkaProcess, group: str) -> int | None:
    request = ConsumerGroupHeartbeatRequest(
        group_id=group,
        member_id="member",
        member_epoch=0,
        rebalance_timeout_ms=60_000,
        subscribed_topic_names=["t"],
        topic_partitions=[],
    )
    with Messages(broker.address) as connection:
        response = connection.call(request, 1)
    return None if response.error_code else int(response.heartbeat_interval_ms)


def test_group_settings_survive_a_kill_of_the_broker(tmp_path: Path) -> None:
    broker = KavkaProcess(tmp_path, overrides={"group.consumer.max.session.timeout.ms": 70_000})
    try:
        outputs = []
        for tool, *args in (command[1:] for command in documented_commands()):
            assert tool == "configs"
            result = run_kavka(tool, *(arg.replace("localhost:9092", broker.bootstrap_servers) for arg in args))
            assert result.code == 0, result
            outputs.append(result.out)
        assert "consumer.session.timeout.ms=60000 sensitive=false synonyms={DYNAMIC_GROUP_CONFIG:" in outputs[1]
        group = ConfigResource.group("a/b")
        with Admin(bootstrap_servers=broker.bootstrap_servers) as admin:
            admin.create_topics(["t"])
            assert admin.list_consumer_group_offsets("a/b") == {}
            assert admin.list_config_resources() and group not in admin.list_config_resources()
            values = {"consumer.heartbeat.interval.ms": "7000", "consumer.session.timeout.ms": "66000"}
            admin.incremental_alter_configs({group: values})
        broker.process.kill()
        broker.start()
        with Admin(bootstrap_servers=broker.bootstrap_servers) as admin:
            assert group in admin.list_config_resources()
            assert admin.describe_configs(group)[group]["consumer.session.timeout.ms"].value == "66000"
        wait_until(lambda: heartbeat_interval_ms(broker, "a/b") is not None, timeout=60, what="the group's coordinator")
        assert (heartbeat_interval_ms(broker, "a/b"), heartbeat_interval_ms(broker, "other")) == (7000, 5000)
    finally:
        broker.process.kill()
