"""Topics that sources make: which rule counts, and which are made."""

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
    "given, wrong",
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
def test_what_apache_refuses_is_refused(given: dict[str, str], wrong: dict[str, str]) -> None:
    errors = rules(given, {})[1]
    assert errors.keys() == wrong.keys()
    assert all(text in errors[name][0] for name, text in wrong.items()), errors


def test_the_first_group_that_a_topic_belongs_to_says_what_it_is_like() -> None:
    given = {
        **BOTH, G: "a, b", "topic.creation.a.include": "ab.*", "topic.creation.a.exclude": "abc",
        "topic.creation.a.replication.factor": "2", "topic.creation.b.include": "x,ab.",
        "topic.creation.b.partitions": "7", "topic.creation.b.retention.ms": "5",
        "topic.creation.default.cleanup.policy": "compact",
    }  # fmt: skip
    found, errors = rules(given, {})
    assert not errors
    kept = new_topics.from_json(new_topics.to_json(found))
    assert list(kept) == found

    def made(name: str) -> NewTopic:
        return next(rule for rule in kept if rule.matches(name)).topic(name)

    assert made("abd") == NewTopic("abd", 1, 2, configs={})
    assert made("abc") == NewTopic("abc", 7, 1, configs={"retention.ms": "5"})
    assert made("x") == NewTopic("x", 7, 1, configs={"retention.ms": "5"})
    assert made("xx") == NewTopic("xx", 1, 1, configs={"cleanup.policy": "compact"})


def test_the_worker_may_forbid_it() -> None:
    assert rules(BOTH, {"topic.creation.enable": "false"}) == ([], {})
    assert rules({"file": "f"}, {}) == ([], {})
    assert len(rules(BOTH, {})[0]) == 1


class Cluster:
    """In place of an Admin: has topics, and is asked."""

    def __init__(self) -> None:
        self.topics = {"there": NewTopic("there")}
        self.asked: list[list[str]] = []
        self.refuse: KafkaError | None = None

    def __call__(self, settings: Any) -> Cluster:
        return self

    def __enter__(self) -> Cluster:
        return self

    def __exit__(self, *_: object) -> None: ...

    def describe_topics(self, names: list[str]) -> None:
        self.asked.append(names)
        missing = {name: KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION) for name in names if name not in self.topics}
        if missing:
            raise AdminError(missing, {})

    def create_topics(self, new: list[NewTopic]) -> None:
        if self.refuse is not None:
            raise AdminError({new[0].name: self.refuse}, {})
        self.topics[new[0].name] = new[0]


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Iterator[Cluster]:
    made = Cluster()
    monkeypatch.setattr(new_topics, "Admin", made)
    monkeypatch.setattr(new_topics, "_known", set())
    yield made


def batch(*topics: str | None) -> pa.RecordBatch:
    return pa.record_batch({"topic": pa.array(topics, pa.string()), "value": pa.array(["v"] * len(topics))})


def test_topics_of_the_rows_are_made_before_these_come_out(cluster: Cluster) -> None:
    given = {"kafka.bootstrap.servers": "b:1", "newTopics": '[{"include": "t.*", "partitions": 3}]'}
    options, where = sink_options(given), Layout(None, value=1, topic=0)
    out = new_topics.before(options, where, iter([batch("there", "t1", None, "t1"), batch("t1"), batch("u", "t2")]))
    assert next(out).num_rows == 4
    assert cluster.topics.keys() == {"there", "t1"} and cluster.topics["t1"] == NewTopic("t1", 3, None, configs={})
    next(out)
    assert cluster.asked == [["there", "t1"]]
    next(out)
    # Nobody says what u is like: the broker makes it, or not.
    assert cluster.topics.keys() == {"there", "t1", "t2"} and cluster.asked[1:] == [["t2"]]
    fixed = Layout("fixed", value=1, topic=0)
    assert len(list(new_topics.before(options, fixed, iter([batch("t9")])))) == 1 and "t9" not in cluster.topics


def test_one_that_cannot_be_made_is_told_and_one_that_another_made_is_not(cluster: Cluster) -> None:
    every = [new_topics.Rule()]
    cluster.refuse = KafkaError(ErrorCode.TOPIC_ALREADY_EXISTS)
    new_topics.make({"bootstrap.servers": "b:1"}, every, ["t"])
    cluster.refuse = KafkaError(ErrorCode.TOPIC_AUTHORIZATION_FAILED)
    with pytest.raises(PipelineError, match=r"Task failed to create new topic t: .*restart the task"):
        new_topics.make({"bootstrap.servers": "b:1"}, every, ["t"])


@pytest.mark.parametrize("text", ["", "{", "[1]", '[{"what": 1}]'])
def test_rules_that_are_none_are_refused(text: str) -> None:
    with pytest.raises(OptionError, match="newTopics must be rules as JSON"):
        new_topics.from_json(text)
