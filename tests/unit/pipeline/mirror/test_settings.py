"""From MirrorMaker's files to flows."""

from __future__ import annotations

import logging

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
    return {one.name: one for one in flows_of(parse_properties(base + more))}


def test_a_pair_that_is_not_enabled_has_heartbeats_alone() -> None:
    found = flows()
    assert {name: one.enabled for name, one in found.items()} == {"A->B": True, "B->A": False}
    assert set(flows("emit.heartbeats.enabled = false")) == {"A->B"}


def test_the_defaults_are_those_of_mirrormaker() -> None:
    one = flows()["A->B"]
    assert (one.topics, one.groups, one.separator) == ((".*",), (".*",), ".")
    assert (one.refresh_topics, one.checkpoints_interval, one.heartbeats_interval) == (600, 60, 1)
    assert (one.sync_configs, one.emit_checkpoints, one.sync_groups, one.exactly_once) == (True, True, False, False)
    assert one.reset == "earliest"
    assert one.offset_syncs_topic == "mm2-offset-syncs.B.internal"
    assert one.group == "kavka-mirror-A->B"


def test_a_setting_of_the_pair_comes_before_the_same_without_one() -> None:
    found = flows("topics = all.*\nA->B.topics = x, y\nrefresh.topics.interval.seconds=7\nB->A.enabled=true\n")
    assert found["A->B"].topics == ("x", "y")
    assert found["B->A"].topics == ("all.*",)
    assert found["A->B"].refresh_topics == 7


def test_settings_of_clients_are_found_under_every_prefix() -> None:
    one = flows(
        "consumer.fetch.min.bytes = 5\nA.consumer.isolation.level = read_committed\nB.producer.linger.ms = 9\n"
        "A->B.producer.compression.type = zstd\nA.client.id = me\nproducer.acks = 1\nA->B.producer.acks = all\n"
        "A.consumer.auto.offset.reset = latest\nA.consumer.no.such.thing = 1\n"
    )["A->B"]
    assert one.consumer["bootstrap.servers"] == "a:1"
    assert (one.consumer["fetch.min.bytes"], one.consumer["isolation.level"], one.consumer["client.id"]) == (
        "5", "read_committed", "me",
    )  # fmt: skip
    assert (one.producer["bootstrap.servers"], one.producer["linger.ms"], one.producer["acks"]) == ("b:2", "9", "all")
    assert one.producer["compression.type"] == "zstd"
    assert one.source_admin == {"bootstrap.servers": "a:1", "client.id": "me"}
    assert one.reset == "latest"
    assert "auto.offset.reset" not in one.consumer and "no.such.thing" not in one.consumer


def test_offset_syncs_in_the_target_are_named_after_the_source() -> None:
    one = flows("offset-syncs.topic.location = target")["A->B"]
    assert one.offset_syncs_topic == "mm2-offset-syncs.A.internal"
    assert one.offset_syncs_settings["bootstrap.servers"] == "b:2"


def test_without_offset_syncs_there_are_no_checkpoints_and_without_those_no_offsets() -> None:
    one = flows("emit.offset-syncs.enabled = false\nsync.group.offsets.enabled = true")["A->B"]
    assert (one.emit_offset_syncs, one.emit_checkpoints, one.sync_groups) == (False, False, False)


@pytest.mark.parametrize(
    ("base", "more", "message"),
    [
        ("", "", '"clusters"'),
        ("clusters = A, B\nA.bootstrap.servers = a:1", "", "B.bootstrap.servers"),
        (BASE.replace("true", "false"), "", "nothing is mirrored"),
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
            "round in circles",
        ),
    ],
)
def test_what_cannot_be_is_told_in_a_line(base: str, more: str, message: str) -> None:
    with pytest.raises(OptionError, match=message):
        flows(more, base)


@pytest.mark.parametrize("prefix", ["", "A->B.", "B."])
@pytest.mark.parametrize(
    "setting",
    [
        "topic.filter.class = com.acme.DefaultTopicFilter",
        "group.filter.class = com.acme.OnlyOurGroups",
        "config.property.filter.class = com.acme.Nothing",
        "forwarding.admin.class = com.acme.FederatedAdmin",
        "config.providers = file",
        "use.defaults.from = source",
        "value.converter = org.apache.kafka.connect.json.JsonConverter",
        "transforms = mask",
        "predicates = isPrivate",
    ],
)
def test_what_would_change_what_is_mirrored_and_is_not_supported_is_refused(prefix: str, setting: str) -> None:
    with pytest.raises(OptionError) as caught:
        flows(f"{prefix}{setting}")
    assert str(caught.value).startswith(f"{prefix}{setting} is not supported") and "\n" not in str(caught.value)


def test_such_a_setting_is_accepted_where_it_says_what_is_done_anyway(caplog: pytest.LogCaptureFixture) -> None:
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


def test_groups_are_looked_for_once_where_they_are_not_to_be_refreshed() -> None:
    found = flows("A->B.refresh.groups.enabled = false\nrefresh.groups.interval.seconds = 7\nB->A.enabled = true")
    assert (found["A->B"].refresh_groups, found["B->A"].refresh_groups) == (0, 7)


def test_two_ways_with_names_kept_are_fine_where_each_has_its_topics() -> None:
    found = flows(
        "B->A.enabled = true\nreplication.policy.class = IdentityReplicationPolicy\n"
        "A->B.topics = a.*\nB->A.topics = b.*"
    )
    assert not found["A->B"].comes_back("apples")
    assert found["A->B"].others == (("B", "A", ("b.*",), found["B->A"].topics_exclude),)


def test_exactly_once_may_be_a_setting_of_the_target_as_in_mirrormaker() -> None:
    one = flows("B.exactly.once.source.support = enabled\nstate.dir = /x")["A->B"]
    assert one.exactly_once and one.state_dir == "/x"


def test_only_flows_into_the_clusters_that_are_asked_for() -> None:
    given = parse_properties(BASE + "B->A.enabled = true")
    assert [one.name for one in flows_of(given, ["A"])] == ["B->A"]
    with pytest.raises(OptionError, match="no cluster C"):
        flows_of(given, ["C"])


def test_a_name_that_nobody_knows_is_told_with_the_nearest(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        flows("A->B.topic = x\nsync.topic.acls.enabled = true\nspark.foo = 1\nA.consumer.x = 1\ntasks.max = 3")
    assert [record.getMessage() for record in caplog.records] == [
        "A->B.topic is no setting; did you mean topics?",
        "ACLs are not synced: sync.topic.acls.enabled has no effect",
    ]


def test_the_older_mirrormaker_copies_topics_under_their_names_and_nothing_else() -> None:
    one = simple_flow({"bootstrap.servers": "a:1", "group.id": "g"}, {"bootstrap.servers": "b:2"}, "x|y")
    assert (one.topics, one.group, one.reset, one.remote_topic("x")) == (("x|y",), "g", "latest", "x")
    assert not (one.emit_heartbeats or one.emit_checkpoints or one.emit_offset_syncs or one.sync_configs)
    assert not one.wants_topic("heartbeats") and not one.wants_topic("__consumer_offsets")
    for consumer, producer, message in (
        ({"group.id": "g"}, {"bootstrap.servers": "b:2"}, "--consumer.config has no bootstrap.servers"),
        ({"bootstrap.servers": "a:1", "group.id": "g"}, {}, "--producer.config has no bootstrap.servers"),
        ({"bootstrap.servers": "a:1"}, {"bootstrap.servers": "b:2"}, "no group.id"),
    ):
        with pytest.raises(OptionError, match=message):
            simple_flow(consumer, producer, ".*")
