"""Which topics are mirrored, and what they are called."""

from __future__ import annotations

from typing import Any

import pytest

from kavka.pipeline.mirror.flow import Flow
from kavka.pipeline.mirror.policy import DEFAULT, IDENTITY, NameFilter, Policy
from kavka.pipeline.spark.errors import OptionError


def flow(**more: Any) -> Flow:
    servers = {"bootstrap.servers": "x:1"}
    return Flow("A", "B", servers, servers, servers, servers, **more)


def test_the_default_policy_puts_the_cluster_before_the_name() -> None:
    policy = Policy()
    assert policy.remote_topic("A", "orders") == "A.orders"
    assert policy.topic_source("A.orders") == "A"
    assert policy.upstream_topic("A.B.orders") == "B.orders"
    assert policy.topic_source("orders") is None
    assert Policy(separator="_").remote_topic("A", "orders") == "A_orders"


def test_the_identity_policy_keeps_names_but_those_of_heartbeats() -> None:
    policy = Policy("org.apache.kafka.connect.mirror.IdentityReplicationPolicy")
    assert policy.keeps_names
    assert policy.remote_topic("A", "orders") == "orders"
    assert policy.remote_topic("A", "heartbeats") == "A.heartbeats"
    assert policy.topic_source("A.orders") is None


def test_a_topic_that_has_come_from_the_target_is_not_sent_back_however_far_it_went() -> None:
    policy = Policy()
    assert policy.is_cycle("B.orders", "B")
    assert policy.is_cycle("C.B.orders", "B")
    assert not policy.is_cycle("C.orders", "B")
    assert not policy.is_cycle("orders", "B")


def test_names_of_internal_topics_are_those_of_mirrormaker() -> None:
    assert Policy().offset_syncs_topic("B") == "mm2-offset-syncs.B.internal"
    assert Policy().checkpoints_topic("A") == "A.checkpoints.internal"
    assert Policy(separator="_").checkpoints_topic("A") == "A_checkpoints_internal"
    assert Policy(separator="_", internal_separator=False).checkpoints_topic("A") == "A.checkpoints.internal"


@pytest.mark.parametrize(
    ("topic", "wanted"),
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
def test_what_a_flow_mirrors_by_default(topic: str, wanted: bool) -> None:
    assert flow().wants_topic(topic) is wanted


@pytest.mark.parametrize(
    ("topic", "wanted"),
    [
        ("mine.internal", True),
        ("mine-internal", True),
        ("mm2-offset-syncs.B.internal", False),
        ("mm2-configs.B.internal", False),
        ("A.checkpoints.internal", False),
        ("__consumer_offsets", False),
    ],
)
def test_topics_of_ones_own_that_end_with_internal_are_mirrored_where_the_filter_lets_them(
    topic: str, wanted: bool
) -> None:
    """As MirrorMaker 4.3 does with the same setting."""
    assert flow(topics_exclude=()).wants_topic(topic) is wanted


def test_heartbeats_are_mirrored_though_the_pattern_does_not_name_them() -> None:
    assert flow(topics=("orders",)).wants_topic("heartbeats")
    assert not flow(topics=("orders",), replicate_heartbeats=False).wants_topic("heartbeats")


def test_patterns_match_the_whole_name_and_wrong_ones_are_told() -> None:
    names = NameFilter(("orders", "pay.*"), ("payments-old",))
    assert [n for n in ("orders", "orders2", "payments", "payments-old") if names.allows(n)] == ["orders", "payments"]
    with pytest.raises(OptionError, match="is not a regular expression"):
        NameFilter(("(",))
    with pytest.raises(OptionError, match=DEFAULT):
        Policy("MyPolicy")


def test_with_names_kept_a_topic_that_would_come_back_is_known() -> None:
    back = ("B", "A", ("b.*",), ())
    assert flow(policy_class=IDENTITY, others=(back,)).comes_back("billing")
    assert not flow(policy_class=IDENTITY, others=(back,)).comes_back("orders")
    assert not flow(others=(back,)).comes_back("billing")
    round_about = (("B", "C", (".*",), ()), ("C", "A", (".*",), ("orders",)))
    assert flow(policy_class=IDENTITY, others=round_about).comes_back("billing")
    assert not flow(policy_class=IDENTITY, others=round_about).comes_back("orders")


def test_a_flow_is_the_same_after_its_way_through_json() -> None:
    before = flow(topics=("a", "b"), others=(("B", "A", ("x",), ("y",)),), internal_factors={"heartbeats": 2})
    assert Flow.from_json(before.to_json()) == before
