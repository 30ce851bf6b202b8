"""Reassignment plans: reading, checking, generating."""

from __future__ import annotations

import json

import pytest

from kavka.cli import reassign_plan
from kavka.cli.tool import ToolError
from kavka.client.admin.types import TopicPartitionReplica
from kavka.common.types import TopicPartition


def write(tmp_path, text: str) -> str:
    path = tmp_path / "plan.json"
    path.write_text(text)
    return str(path)


def test_plan_has_brokers_and_directories(tmp_path):
    entry = {"topic": "t", "partition": 1, "replicas": [1, 2], "log_dirs": ["any", "/d"]}
    plan = reassign_plan.read_plan(write(tmp_path, json.dumps({"version": 1, "partitions": [entry]})))
    assert plan.replicas == {TopicPartition("t", 1): [1, 2]}
    assert plan.directories == {TopicPartitionReplica("t", 1, 2): "/d"}
    plan.check()


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{", "line 1, column 2"),
        ("[]", "must be a JSON object"),
        ("{}", 'there is no "partitions"'),
        ('{"version": 2, "partitions": []}', "Not supported version field value 2"),
        ('{"partitions": [{"partition": 1, "replicas": [1]}]}', 'partition 1: there is no "topic"'),
        ('{"partitions": [{"topic": "t", "partition": "1", "replicas": [1]}]}', '"partition" must be a number'),
        ('{"partitions": [{"topic": "t", "partition": 1, "replicas": ["1"]}]}', "must be a list of broker ids"),
        (
            '{"partitions": [{"topic": "t", "partition": 1, "replicas": [1], "log_dirs": ["a", "b"]}]}',
            "is different from size of log dirs list",
        ),
        (
            '{"partitions": [{"topic": "t", "partition": 1, "replicas": [1]}, '
            '{"topic": "t", "partition": 1, "replicas": [2]}]}',
            "duplicate topic partitions: t-1",
        ),
    ],
)
def test_invalid_plan_file_is_rejected(tmp_path, text, words):
    with pytest.raises(ToolError, match=words.replace("(", r"\(")):
        reassign_plan.read_plan(write(tmp_path, text))


@pytest.mark.parametrize(
    ("plan", "words"),
    [
        (reassign_plan.Plan(), "cannot be empty"),
        (reassign_plan.Plan({TopicPartition("t", 0): []}), "Partition replica list cannot be empty"),
        (reassign_plan.Plan({TopicPartition("t", 0): [1, 2, 1]}), "t-0 contains multiple entries for 1"),
    ],
)
def test_empty_or_duplicate_replicas_cannot_be_executed(plan, words):
    with pytest.raises(ToolError, match=words):
        plan.check()


def current(partitions: int, replicas: int) -> reassign_plan.Assignment:
    return {TopicPartition("t", number): list(range(replicas)) for number in range(partitions)}


def test_proposal_spreads_leaders_and_replicas_evenly():
    proposed = reassign_plan.propose(current(30, 2), dict.fromkeys((3, 4, 5), None))
    assert set(proposed) == set(current(30, 2))
    leaders = [replicas[0] for replicas in proposed.values()]
    brokers = [broker for replicas in proposed.values() for broker in replicas]
    for broker in (3, 4, 5):
        assert leaders.count(broker) == 10
        assert brokers.count(broker) == 20
    assert all(len(set(replicas)) == 2 for replicas in proposed.values())


def test_proposal_spreads_replicas_over_racks():
    racks = {0: "a", 1: "a", 2: "b", 3: "b", 4: "c", 5: "c"}
    for factor in (1, 2, 3):
        for replicas in reassign_plan.propose(current(12, factor), racks).values():
            assert len({racks[broker] for broker in replicas}) == factor
    for replicas in reassign_plan.propose(current(12, 4), racks).values():
        assert len(set(replicas)) == 4
        assert len({racks[broker] for broker in replicas}) == 3


def test_replication_factor_above_the_number_of_brokers_is_rejected():
    with pytest.raises(ToolError, match="larger than available brokers: 1"):
        reassign_plan.propose(current(1, 2), {0: None})


def test_plan_json_is_equal_to_that_of_kafka():
    assert reassign_plan.as_reassignment_json({TopicPartition("t", 1): [2], TopicPartition("a", 0): [1, 2]}) == (
        '{"version":1,"partitions":[{"topic":"a","partition":0,"replicas":[1,2],"log_dirs":["any","any"]},'
        '{"topic":"t","partition":1,"replicas":[2],"log_dirs":["any"]}]}'
    )
