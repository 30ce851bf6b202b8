"""The selection of mirrored topics, and their names in the target."""

from __future__ import annotations

from typing import Any

import pytest

from kavka.pipeline.mirror.flow import Flow, OtherFlow
from kavka.pipeline.mirror.policy import (
    IDENTITY,
    INTERNAL_SEPARATOR,
    SEPARATOR,
    DefaultReplicationPolicy,
    Filter,
    NameFilter,
)
from kavka.pipeline.spark.errors import OptionError


def flow(**settings: Any) -> Flow:
    servers = {"bootstrap.servers": "x:1"}
    return Flow("A", "B", servers, servers, servers, servers, **settings)


def policy_of(name: str = "DefaultReplicationPolicy", **settings: str) -> DefaultReplicationPolicy:
    return flow(policy_class=name, settings=settings).policy


class Suffixed(DefaultReplicationPolicy):
    """The policy of a user: `orders` of A becomes `orders.A`."""

    def remote_topic(self, source: str, topic: str) -> str:
        return f"{topic}{self.separator}{source}"

    def topic_source(self, topic: str) -> str | None:
        return topic.rpartition(self.separator)[2] if self.separator in topic else None

    def upstream_topic(self, topic: str) -> str | None:
        return topic.rpartition(self.separator)[0] or None


class Ours(Filter):
    """The filter of a user: names that start with the setting `team`."""

    def configure(self, settings: Any) -> None:
        self.team = settings["team"]

    def allows(self, name: str) -> bool:
        return name.startswith(self.team)


def test_the_default_policy_prefixes_names_with_the_cluster() -> None:
    policy = policy_of()
    assert policy.remote_topic("A", "orders") == "A.orders"
    assert policy.topic_source("A.orders") == "A"
    assert policy.upstream_topic("A.B.orders") == "B.orders"
    assert policy.topic_source("orders") is None
    assert policy_of(**{SEPARATOR: "_"}).remote_topic("A", "orders") == "A_orders"


def test_the_identity_policy_keeps_names_except_heartbeats() -> None:
    policy = policy_of("org.apache.kafka.connect.mirror.IdentityReplicationPolicy")
    assert policy.keeps_names
    assert policy.remote_topic("A", "orders") == "orders"
    assert policy.remote_topic("A", "heartbeats") == "A.heartbeats"
    assert policy.topic_source("A.orders") is None


def test_a_topic_from_the_target_is_a_cycle() -> None:
    policy = policy_of()
    assert policy.is_cycle("B.orders", "B")
    assert policy.is_cycle("C.B.orders", "B")
    assert not policy.is_cycle("C.orders", "B")
    assert not policy.is_cycle("orders", "B")


def test_internal_topics_have_mirrormakers_names() -> None:
    assert policy_of().offset_syncs_topic("B") == "mm2-offset-syncs.B.internal"
    assert policy_of().checkpoints_topic("A") == "A.checkpoints.internal"
    assert policy_of(**{SEPARATOR: "_"}).checkpoints_topic("A") == "A_checkpoints_internal"
    unchanged = policy_of(**{SEPARATOR: "_", INTERNAL_SEPARATOR: "false"})
    assert unchanged.checkpoints_topic("A") == "A.checkpoints.internal"


@pytest.mark.parametrize(
    ("topic", "is_mirrored"),
    [
        ("orders", True),
        ("__consumer_offsets", False),
        ("connect-configs-internal", False),
        ("mm2-offset-syncs.B.internal", False),
        ("A.checkpoints.internal", False),
        ("orders.replica", False),
        ("B.orders", False),
        ("heartbeats", True),
        ("C.heartbeats", True),
        ("B.heartbeats", False),
    ],
)
def test_default_filters_select_topics(topic: str, is_mirrored: bool) -> None:
    assert flow().includes_topic(topic) is is_mirrored


@pytest.mark.parametrize(
    ("topic", "is_mirrored"),
    [
        ("mine.internal", True),
        ("mine-internal", True),
        ("mm2-offset-syncs.B.internal", False),
        ("mm2-configs.B.internal", False),
        ("A.checkpoints.internal", False),
        ("__consumer_offsets", False),
    ],
)
def test_user_topics_that_end_with_internal_may_be_mirrored(topic: str, is_mirrored: bool) -> None:
    """MirrorMaker 4.3 selects the same topics with the same setting."""
    assert flow(topics_exclude=()).includes_topic(topic) is is_mirrored


def test_heartbeats_are_mirrored_without_a_matching_pattern() -> None:
    assert flow(topics=("orders",)).includes_topic("heartbeats")
    assert not flow(topics=("orders",), replicate_heartbeats=False).includes_topic("heartbeats")


def test_patterns_match_the_whole_name_and_invalid_ones_are_rejected() -> None:
    names = NameFilter(("orders", "pay.*"), ("payments-old",))
    assert [n for n in ("orders", "orders2", "payments", "payments-old") if names.allows(n)] == ["orders", "payments"]
    with pytest.raises(OptionError, match="is not a regular expression"):
        NameFilter(("(",))


def test_topics_that_other_flows_mirror_back_are_detected() -> None:
    reverse = OtherFlow("B", "A", ("b.*",), ())
    assert flow(policy_class=IDENTITY, others=(reverse,)).is_returned("billing")
    assert not flow(policy_class=IDENTITY, others=(reverse,)).is_returned("orders")
    assert not flow(others=(reverse,)).is_returned("billing")
    through_c = (OtherFlow("B", "C"), OtherFlow("C", "A", (".*",), ("orders",)))
    assert flow(policy_class=IDENTITY, others=through_c).is_returned("billing")
    assert not flow(policy_class=IDENTITY, others=through_c).is_returned("orders")


def test_a_flow_round_trips_through_json() -> None:
    original = flow(
        topics=("a", "b"), others=(OtherFlow("B", "A", ("x",), ("y",)),), internal_factors={"heartbeats": 2}
    )
    assert Flow.from_json(original.to_json()) == original


def test_a_custom_policy_names_topics_and_prevents_cycles() -> None:
    custom = flow(policy_class=f"{__name__}:Suffixed", settings={SEPARATOR: "-"})
    assert custom.remote_topic("orders") == "orders-A"
    assert custom.includes_topic("orders") and not custom.includes_topic("orders-B")
    assert Flow.from_json(custom.to_json()).remote_topic("orders") == "orders-A"


def test_custom_filters_replace_the_patterns() -> None:
    ours, settings = f"{__name__}.Ours", {"team": "blue"}
    custom = flow(topic_filter_class=ours, group_filter_class=ours, config_filter_class=ours, settings=settings)
    assert custom.includes_topic("blue-orders") and not custom.includes_topic("orders")
    assert not custom.includes_topic("blue.checkpoints.internal")
    assert custom.includes_group("blue-shop") and not custom.includes_group("shop")
    assert custom.config_filter.allows("blue.ms") and not custom.config_filter.allows("retention.ms")
    assert not flow(group_filter_class=ours, settings={"team": "kavka"}).includes_group("kavka-mirror-A->B")
    back = OtherFlow("B", "A", topic_filter_class=ours, settings=settings)
    assert flow(policy_class=IDENTITY, others=(back,)).is_returned("blue-orders")
    assert not flow(policy_class=IDENTITY, others=(back,)).is_returned("orders")


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"policy_class": "MyPolicy"}, "DefaultReplicationPolicy, IdentityReplicationPolicy"),
        ({"policy_class": f"{__name__}:Ours", "settings": {"team": "x"}}, "must be a subclass of .*DefaultRep"),
        ({"policy_class": f"{__name__}:Missing"}, "cannot be loaded"),
        ({"settings": {SEPARATOR: " "}}, "replication.policy.separator is empty"),
    ],
)
def test_classes_that_cannot_be_used_are_rejected(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        assert flow(**fields).policy
