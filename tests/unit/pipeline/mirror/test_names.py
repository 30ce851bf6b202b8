"""The selection of mirrored topics, and their names in the target."""

from __future__ import annotations

from typing import Any

import pytest

from kavka.pipeline.mirror.flow import Flow
from kavka.pipeline.mirror.policy import DEFAULT, IDENTITY, NameFilter, Policy
from kavka.pipeline.spark.errors import OptionError


def flow(**settings: Any) -> Flow:
    servers = {"bootstrap.servers": "x:1"}
    return Flow("A", "B", servers, servers, servers, servers, **settings)


def test_the_default_policy_prefixes_names_with_the_cluster() -> None:
    policy = Policy()
    assert policy.remote_topic("A", "orders") == "A.orders"
    assert policy.topic_source("A.orders") == "A"
    assert policy.upstream_topic("A.B.orders") == "B.orders"
    assert policy.topic_source("orders") is None
    assert Policy(separator="_").remote_topic("A", "orders") == "A_orders"


def test_the_identity_policy_keeps_names_except_heartbeats() -> None:
    policy = Policy("org.apache.kafka.connect.mirror.IdentityReplicationPolicy")
    assert policy.keeps_names
    assert policy.remote_topic("A", "orders") == "orders"
    assert policy.remote_topic("A", "heartbeats") == "A.heartbeats"
    assert policy.topic_source("A.orders") is None


def test_a_topic_from_the_target_is_a_cycle() -> None:
    policy = Policy()
    assert policy.is_cycle("B.orders", "B")
    assert policy.is_cycle("C.B.orders", "B")
    assert not policy.is_cycle("C.orders", "B")
    assert not policy.is_cycle("orders", "B")


def test_internal_topics_have_mirrormakers_names() -> None:
    assert Policy().offset_syncs_topic("B") == "mm2-offset-syncs.B.internal"
    assert Policy().checkpoints_topic("A") == "A.checkpoints.internal"
    assert Policy(separator="_").checkpoints_topic("A") == "A_checkpoints_internal"
    assert Policy(separator="_", internal_separator=False).checkpoints_topic("A") == "A.checkpoints.internal"


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
    with pytest.raises(OptionError, match=DEFAULT):
        Policy("MyPolicy")


def test_topics_that_other_flows_mirror_back_are_detected() -> None:
    reverse = ("B", "A", ("b.*",), ())
    assert flow(policy_class=IDENTITY, others=(reverse,)).is_returned("billing")
    assert not flow(policy_class=IDENTITY, others=(reverse,)).is_returned("orders")
    assert not flow(others=(reverse,)).is_returned("billing")
    through_c = (("B", "C", (".*",), ()), ("C", "A", (".*",), ("orders",)))
    assert flow(policy_class=IDENTITY, others=through_c).is_returned("billing")
    assert not flow(policy_class=IDENTITY, others=through_c).is_returned("orders")


def test_a_flow_round_trips_through_json() -> None:
    original = flow(topics=("a", "b"), others=(("B", "A", ("x",), ("y",)),), internal_factors={"heartbeats": 2})
    assert Flow.from_json(original.to_json()) == original
