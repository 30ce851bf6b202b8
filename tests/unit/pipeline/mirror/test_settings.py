"""Parsing of MirrorMaker's configuration files."""

from __future__ import annotations

import logging
import os
import re
import sys
from pathlib import Path

import pytest

from kavka.common.properties import parse_properties
from kavka.pipeline.mirror.flow import Flow
from kavka.pipeline.mirror.settings import flows_of, simple_flow
from kavka.pipeline.spark.errors import OptionError

BASE = """
clusters = A, B
A.bootstrap.servers = a:1
B.bootstrap.servers = b:2
A->B.enabled = true
"""


def flows(more: str = "", base: str = BASE) -> dict[str, Flow]:
    return {flow.name: flow for flow in flows_of(parse_properties(base + more))}


def test_a_disabled_pair_only_writes_heartbeats() -> None:
    by_name = flows()
    assert {name: flow.enabled for name, flow in by_name.items()} == {"A->B": True, "B->A": False}
    assert set(flows("emit.heartbeats.enabled = false")) == {"A->B"}


def test_the_defaults_equal_those_of_mirrormaker() -> None:
    flow = flows()["A->B"]
    assert (flow.topics, flow.groups, flow.policy.separator) == ((".*",), (".*",), ".")
    assert (flow.refresh_topics, flow.checkpoints_interval, flow.heartbeats_interval) == (600, 60, 1)
    assert (flow.sync_configs, flow.emit_checkpoints, flow.sync_groups, flow.exactly_once) == (True, True, False, False)
    assert flow.reset == "earliest"
    assert flow.offset_syncs_topic == "mm2-offset-syncs.B.internal"
    assert flow.group == "kavka-mirror-A->B"


def test_settings_of_a_pair_take_precedence() -> None:
    by_name = flows("topics = all.*\nA->B.topics = x, y\nrefresh.topics.interval.seconds=7\nB->A.enabled=true\n")
    assert by_name["A->B"].topics == ("x", "y")
    assert by_name["B->A"].topics == ("all.*",)
    assert by_name["A->B"].refresh_topics == 7


def test_client_settings_are_read_from_every_prefix() -> None:
    flow = flows(
        "consumer.fetch.min.bytes = 5\nA.consumer.isolation.level = read_committed\nB.producer.linger.ms = 9\n"
        "A->B.producer.compression.type = zstd\nA.client.id = me\nproducer.acks = 1\nA->B.producer.acks = all\n"
        "A.consumer.auto.offset.reset = latest\nA.consumer.no.such.thing = 1\n"
    )["A->B"]
    assert flow.consumer["bootstrap.servers"] == "a:1"
    assert (flow.consumer["fetch.min.bytes"], flow.consumer["isolation.level"], flow.consumer["client.id"]) == (
        "5", "read_committed", "me",
    )  # fmt: skip
    assert (flow.producer["bootstrap.servers"], flow.producer["linger.ms"], flow.producer["acks"]) == (
        "b:2",
        "9",
        "all",
    )
    assert flow.producer["compression.type"] == "zstd"
    assert flow.source_admin == {"bootstrap.servers": "a:1", "client.id": "me"}
    assert flow.reset == "latest"
    assert "auto.offset.reset" not in flow.consumer and "no.such.thing" not in flow.consumer


def test_offset_syncs_in_the_target_are_named_after_the_source() -> None:
    flow = flows("offset-syncs.topic.location = target")["A->B"]
    assert flow.offset_syncs_topic == "mm2-offset-syncs.A.internal"
    assert flow.offset_syncs_settings["bootstrap.servers"] == "b:2"


def test_checkpoints_and_group_offsets_require_offset_syncs() -> None:
    flow = flows("emit.offset-syncs.enabled = false\nsync.group.offsets.enabled = true")["A->B"]
    assert (flow.emit_offset_syncs, flow.emit_checkpoints, flow.sync_groups) == (False, False, False)


@pytest.mark.parametrize(
    ("base", "more", "message"),
    [
        ("", "", '"clusters"'),
        ("clusters = A, B\nA.bootstrap.servers = a:1", "", "B.bootstrap.servers"),
        (BASE.replace("true", "false"), "", "no pair of clusters is enabled"),
        (BASE, "A->B.topics = (", "is not a regular expression"),
        (BASE, "replication.policy.class = Mine", "replication.policy.class"),
        (BASE, "sync.group.offsets.enabled = maybe", "true or false"),
        (BASE, "refresh.topics.interval.seconds = soon", "whole number"),
        (BASE, "offset-syncs.topic.location = here", "source or target"),
        (BASE, "exactly.once.source.support = enabled", "state.dir"),
        (BASE, "A.consumer.auto.offset.reset = none", "earliest or latest"),
        (
            BASE,
            "B->A.enabled = true\nreplication.policy.class = IdentityReplicationPolicy",
            "loop forever",
        ),
    ],
)
def test_invalid_settings_are_rejected(base: str, more: str, message: str) -> None:
    with pytest.raises(OptionError, match=message):
        flows(more, base)


@pytest.mark.parametrize("prefix", ["", "A->B.", "B."])
@pytest.mark.parametrize(
    "setting",
    [
        "errors.tolerance = all",
        "forwarding.admin.class = com.acme.FederatedAdmin",
        "use.defaults.from = source",
        "value.converter = org.apache.kafka.connect.json.JsonConverter",
        "transforms = mask",
        "predicates = isPrivate",
    ],
)
def test_unsupported_settings_that_change_the_mirrored_data_are_rejected(prefix: str, setting: str) -> None:
    with pytest.raises(OptionError) as caught:
        flows(f"{prefix}{setting}")
    assert str(caught.value).startswith(f"{prefix}{setting} is not supported") and "\n" not in str(caught.value)


def test_unsupported_settings_with_the_default_value_are_accepted(caplog: pytest.LogCaptureFixture) -> None:
    mirror = "org.apache.kafka.connect.mirror"
    with caplog.at_level(logging.WARNING):
        flows(
            f"topic.filter.class = {mirror}.DefaultTopicFilter\nA->B.group.filter.class = {mirror}.DefaultGroupFilter\n"
            f"config.property.filter.class = {mirror}.DefaultConfigPropertyFilter\nuse.defaults.from = target\n"
            "forwarding.admin.class = org.apache.kafka.clients.admin.ForwardingAdmin\nconfig.providers =\n"
            "key.converter = org.apache.kafka.connect.converters.ByteArrayConverter\n"
            "value.converter = ByteArrayConverter"
        )
    assert not caplog.records


def test_both_clusters_are_secured_and_secrets_come_from_providers(tmp_path: Path) -> None:
    (tmp_path / "secrets").write_text("password=hidden-4711\n")
    flow = flows(
        "config.providers = file\n"
        "config.providers.file.class = org.apache.kafka.common.config.provider.FileConfigProvider\n"
        "security.protocol = SASL_SSL\nsasl.mechanism = SCRAM-SHA-256\nssl.ca.location = /ca.pem\n"
        "A.sasl.username = alice\n"
        f"A.sasl.password = ${{file:{tmp_path}/secrets:password}}\n"
        "B.security.protocol = SSL"
    )["A->B"]
    expected = {"security.protocol": "SASL_SSL", "ssl.ca.location": "/ca.pem", "sasl.password": "hidden-4711"}
    for client in (flow.consumer, flow.source_admin):
        assert expected.items() <= client.items()
    for client in (flow.producer, flow.target_admin):
        assert client["security.protocol"] == "SSL" and "sasl.password" not in client
    assert "hidden-4711" not in repr(flow)
    with pytest.raises(OptionError, match=r"config.providers.file.class"):
        flows("config.providers = file")


def test_groups_are_listed_once_if_refreshing_is_disabled() -> None:
    by_name = flows("A->B.refresh.groups.enabled = false\nrefresh.groups.interval.seconds = 7\nB->A.enabled = true")
    assert (by_name["A->B"].refresh_groups, by_name["B->A"].refresh_groups) == (0, 7)


def test_opposite_flows_with_unchanged_names_need_different_topics() -> None:
    by_name = flows(
        "B->A.enabled = true\nreplication.policy.class = IdentityReplicationPolicy\n"
        "A->B.topics = a.*\nB->A.topics = b.*"
    )
    assert not by_name["A->B"].is_returned("apples")
    (other,) = by_name["A->B"].others
    assert other[:4] == ("B", "A", ("b.*",), by_name["B->A"].topics_exclude)


def test_exactly_once_may_be_a_setting_of_the_target() -> None:
    flow = flows("B.exactly.once.source.support = enabled\nstate.dir = /x")["A->B"]
    assert flow.exactly_once and flow.state_dir == "/x"


def test_flows_are_restricted_to_the_selected_targets() -> None:
    settings = parse_properties(BASE + "B->A.enabled = true")
    assert [flow.name for flow in flows_of(settings, ["A"])] == ["B->A"]
    with pytest.raises(OptionError, match="cluster C is not one of"):
        flows_of(settings, ["C"])


def test_unknown_settings_are_logged_with_a_suggestion(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        flows("A->B.topic = x\nsync.topic.acls.enabled = true\nspark.foo = 1\nA.consumer.x = 1\ntasks.max = 3")
    assert [record.getMessage() for record in caplog.records] == [
        "A->B.topic is not a setting; did you mean topics?",
        "tasks.max has no effect: the mirror does not run in Kafka Connect",
    ]


def test_mirrormaker_1_only_copies_topics() -> None:
    flow = simple_flow({"bootstrap.servers": "a:1", "group.id": "g"}, {"bootstrap.servers": "b:2"}, "x|y")
    assert (flow.topics, flow.group, flow.reset, flow.remote_topic("x")) == (("x|y",), "g", "latest", "x")
    assert not (flow.emit_heartbeats or flow.emit_checkpoints or flow.emit_offset_syncs or flow.sync_configs)
    assert not flow.sync_acls
    assert not flow.includes_topic("heartbeats") and not flow.includes_topic("__consumer_offsets")
    for consumer, producer, message in (
        ({"group.id": "g"}, {"bootstrap.servers": "b:2"}, "--consumer.config has no bootstrap.servers"),
        ({"bootstrap.servers": "a:1", "group.id": "g"}, {}, "--producer.config has no bootstrap.servers"),
        ({"bootstrap.servers": "a:1"}, {"bootstrap.servers": "b:2"}, "no group.id"),
    ):
        with pytest.raises(OptionError, match=message):
            simple_flow(consumer, producer, ".*")


PLUGIN = """
from kavka.pipeline.mirror.policy import Filter

class Blue(Filter):
    def configure(self, settings):
        self.prefix = settings["blue.prefix"]
        assert not [name for name in settings if "password" in name]

    def allows(self, name):
        return name.startswith(self.prefix)
"""


@pytest.fixture
def plugin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A module with a filter in a folder. Returns the name of the module."""
    (tmp_path / "mirror_plugin_of_test.py").write_text(PLUGIN)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setenv("PYTHONPATH", "")
    return "mirror_plugin_of_test"


def test_custom_classes_come_from_declared_modules(plugin: str, tmp_path: Path) -> None:
    setting = f"A->B.topic.filter.class = {plugin}:Blue\nA->B.blue.prefix = b\nA.sasl.password = x\n"
    with pytest.raises(OptionError, match=f"plugin.modules={plugin}"):
        flows(setting)
    flow = flows(f"{setting}plugin.path = {tmp_path}")["A->B"]
    assert flow.includes_topic("blue") and not flow.includes_topic("red")
    assert os.environ["PYTHONPATH"] == str(tmp_path)
    with pytest.raises(OptionError, match=r"group\.filter\.class"):
        flows(f"group.filter.class = {plugin}:Green\nplugin.path = {tmp_path}")


def test_the_documented_classes_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    document = (Path(__file__).parents[4] / "docs" / "mirror.md").read_text()
    blocks = re.findall(r"^```(?:python|properties)\n(.*?)^```", document, re.M | re.S)
    (module,) = (block for block in blocks if "class TeamTopics" in block)
    (settings,) = (block for block in blocks if "mirror_rules:TeamTopics" in block)
    (tmp_path / "mirror_rules.py").write_text(module)
    monkeypatch.syspath_prepend(str(tmp_path))
    flow = flows(f"{settings}replication.policy.class = mirror_rules:Suffix")["A->B"]
    assert flow.includes_topic("shop-orders") and not flow.includes_topic("orders")
    assert not flow.includes_topic("shop-orders.B")
    assert flow.remote_topic("shop-orders") == "shop-orders.A"


def test_processes_with_a_group_id_share_the_flows() -> None:
    flow = flows("group.id = mirrors\nsession.timeout.ms = 6000")["A->B"]
    assert (flow.sharing_group, flow.session_timeout, flow.heartbeat_interval) == ("mirrors", 6.0, 1.0)
    assert not flows()["A->B"].sharing_group
    with pytest.raises(OptionError, match=r"less than session\.timeout\.ms"):
        flows("group.id = mirrors\nheartbeat.interval.ms = 10000")
