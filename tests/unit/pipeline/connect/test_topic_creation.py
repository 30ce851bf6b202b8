"""Topic creation by sources: the rules, and the topics that are created."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest

from kavka.client.admin.base import AdminError
from kavka.client.admin.types import NewTopic
from kavka.common.errors import ErrorCode, KafkaError
from kavka.pipeline.connect.topic_creation import rules
from kavka.pipeline.spark import new_topics
from kavka.pipeline.spark.errors import OptionError, PipelineError
from kavka.pipeline.spark.options import sink_options
from kavka.pipeline.spark.rows import Layout

D, R, G = "topic.creation.default.partitions", "topic.creation.default.replication.factor", "topic.creation.groups"
BOTH = {D: "1", R: "1"}


@pytest.mark.parametrize(
    "originals, expected",
    [
        ({D: "3"}, {R: "Missing required configuration"}),
        ({R: "3"}, {D: "Missing required configuration"}),
        ({G: "a"}, {D: "Missing required configuration", R: "Missing required configuration"}),
        ({D: "0", R: "1"}, {D: "Invalid value 0 for configuration"}),
        ({D: "-2", R: "0"}, {D: "or -1 to use the broker's default", R: "or -1 to use the broker's default"}),
        ({**BOTH, G: "a,a", "topic.creation.a.include": ".*"}, {G: "Duplicate alias provided"}),
        ({**BOTH, G: "a", "topic.creation.a.include": "("}, {"topic.creation.a.include": "Syntax error in regular"}),
        ({**BOTH, G: "a", "topic.creation.a.partitions": "x"}, {"topic.creation.a.partitions": "Invalid value x"}),
        ({**BOTH, "topic.creation.default.exclude": "("}, {}),
        ({}, {}),
    ],
)
def test_settings_that_kafka_rejects_are_rejected(originals: dict[str, str], expected: dict[str, str]) -> None:
    errors = rules(originals, {})[1]
    assert errors.keys() == expected.keys()
    assert all(text in errors[name][0] for name, text in expected.items()), errors


def test_the_first_matching_group_configures_a_topic() -> None:
    originals = {
        **BOTH, G: "a, b", "topic.creation.a.include": "ab.*", "topic.creation.a.exclude": "abc",
        "topic.creation.a.replication.factor": "2", "topic.creation.b.include": "x,ab.",
        "topic.creation.b.partitions": "7", "topic.creation.b.retention.ms": "5",
        "topic.creation.default.cleanup.policy": "compact",
    }  # fmt: skip
    parsed, errors = rules(originals, {})
    assert not errors
    decoded = new_topics.from_json(new_topics.to_json(parsed))
    assert list(decoded) == parsed

    def new_topic(name: str) -> NewTopic:
        return next(rule for rule in decoded if rule.matches(name)).topic(name)

    assert new_topic("abd") == NewTopic("abd", 1, 2, configs={})
    assert new_topic("abc") == NewTopic("abc", 7, 1, configs={"retention.ms": "5"})
    assert new_topic("x") == NewTopic("x", 7, 1, configs={"retention.ms": "5"})
    assert new_topic("xx") == NewTopic("xx", 1, 1, configs={"cleanup.policy": "compact"})


def test_the_worker_may_disable_topic_creation() -> None:
    assert rules(BOTH, {"topic.creation.enable": "false"}) == ([], {})
    assert rules({"file": "f"}, {}) == ([], {})
    assert len(rules(BOTH, {})[0]) == 1


class Cluster:
    """A test double for `Admin`: has topics and records describe requests."""

    def __init__(self) -> None:
        self.topics = {"there": NewTopic("there")}
        self.described: list[list[str]] = []
        self.error: KafkaError | None = None

    def __call__(self, settings: Any) -> Cluster:
        return self

    def __enter__(self) -> Cluster:
        return self

    def __exit__(self, *_: object) -> None: ...

    def describe_topics(self, names: list[str]) -> None:
        self.described.append(names)
        missing = {name: KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION) for name in names if name not in self.topics}
        if missing:
            raise AdminError(missing, {})

    def create_topics(self, topics: list[NewTopic]) -> None:
        (topic,) = topics
        if self.error is not None:
            raise AdminError({topic.name: self.error}, {})
        self.topics[topic.name] = topic


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Iterator[Cluster]:
    cluster = Cluster()
    monkeypatch.setattr(new_topics, "Admin", cluster)
    monkeypatch.setattr(new_topics, "_checked", set())
    yield cluster


def batch(*topics: str | None) -> pa.RecordBatch:
    return pa.record_batch({"topic": pa.array(topics, pa.string()), "value": pa.array(["v"] * len(topics))})


def test_topics_are_created_before_their_rows_are_yielded(cluster: Cluster) -> None:
    settings = {"kafka.bootstrap.servers": "b:1", "newTopics": '[{"include": "t.*", "partitions": 3}]'}
    options, layout = sink_options(settings), Layout(None, value=1, topic=0)
    rows = iter([batch("there", "t1", None, "t1"), batch("t1"), batch("u", "t2")])
    batches = new_topics.creating_topics(options, layout, rows)
    assert next(batches).num_rows == 4
    assert cluster.topics.keys() == {"there", "t1"} and cluster.topics["t1"] == NewTopic("t1", 3, None, configs={})
    next(batches)
    assert cluster.described == [["there", "t1"]]
    next(batches)
    # No rule matches u: the broker may create it.
    assert cluster.topics.keys() == {"there", "t1", "t2"} and cluster.described[1:] == [["t2"]]
    fixed_topic = Layout("fixed", value=1, topic=0)
    assert len(list(new_topics.creating_topics(options, fixed_topic, iter([batch("t9")])))) == 1
    assert "t9" not in cluster.topics


def test_a_failed_creation_is_reported_unless_the_topic_exists(cluster: Cluster) -> None:
    match_all = [new_topics.Rule()]
    cluster.error = KafkaError(ErrorCode.TOPIC_ALREADY_EXISTS)
    new_topics.create_topics({"bootstrap.servers": "b:1"}, match_all, ["t"])
    cluster.error = KafkaError(ErrorCode.TOPIC_AUTHORIZATION_FAILED)
    with pytest.raises(PipelineError, match=r"Task failed to create new topic t: .*restart the task"):
        new_topics.create_topics({"bootstrap.servers": "b:1"}, match_all, ["t"])


@pytest.mark.parametrize("text", ["", "{", "[1]", '[{"what": 1}]'])
def test_invalid_rules_are_rejected(text: str) -> None:
    with pytest.raises(OptionError, match="newTopics must be rules as JSON"):
        new_topics.from_json(text)
