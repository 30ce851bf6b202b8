"""Values on command lines: settings, patterns, ids, assignments, CSV files."""

from __future__ import annotations

import pytest

from kavka.cli import configs, log_dirs, reassign_partitions, resetting, topics
from kavka.cli.consumer_groups_describe import assignment_text
from kavka.cli.names import TopicFilter, uuid_of
from kavka.cli.tool import ToolError
from kavka.common.types import TopicPartition, uuid_text


def test_brackets_protect_commas_in_settings():
    assert configs.parse_pairs("a=1,b=[x,y=z],c=") == {"a": "1", "b": "x,y=z", "c": ""}
    for text in ("a", "a=1,b", "=1", ""):
        with pytest.raises(ToolError, match="key=val"):
            configs.parse_pairs(text)


def test_topic_filter_matches_whole_names():
    topic_filter = TopicFilter('"orders-.*, billing"')
    assert topic_filter.allows("orders-1") and topic_filter.allows("billing")
    assert not topic_filter.allows("my-orders-1")
    assert not TopicFilter(".*").allows("__consumer_offsets", exclude_internal=True)
    with pytest.raises(ToolError, match="invalid regex"):
        TopicFilter("(")


def test_topic_ids_have_kafka_format():
    text = "Jt5Xk4KoROOi1NJMqKNv_g"
    assert uuid_text(uuid_of(text)) == text
    with pytest.raises(ToolError, match="not a topic id"):
        uuid_of("nonsense")


@pytest.mark.parametrize(
    ("tool", "arguments"),
    [
        (log_dirs, ["--describe"]),
        (reassign_partitions, ["--generate", "--topics-to-move-json-file", "topics.json"]),
    ],
)
def test_broker_ids_are_not_bootstrap_servers(tool, arguments, tmp_path, monkeypatch, capsys):
    (tmp_path / "topics.json").write_text('{"topics": [{"topic": "t"}]}')
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("kavka.cli.zookeeper_brokers.brokers_in_zookeeper", lambda tool, connect: "broker:invalid")
    assert tool.main([*arguments, "--broker-list", "0,1", "--zookeeper", "host:2181"]) == 1
    assert "broker:invalid" in capsys.readouterr().err


def test_replica_assignment_is_parsed_and_checked():
    assert topics.parse_assignment("0:1,1:2") == {0: [0, 1], 1: [1, 2]}
    for text, words in (("0:0", "duplicate entries: 0"), ("0:1,1", "different replication factor"), ("a", "'a'")):
        with pytest.raises(ToolError, match=words):
            topics.parse_assignment(text)


def test_assignments_are_grouped_by_topic():
    partitions = {TopicPartition("b", 0), TopicPartition("a", 1), TopicPartition("a", 0)}
    assert assignment_text(partitions) == "a:0,1;b:0"
    assert assignment_text(None) == "-"


def test_sizes_have_binary_units():
    assert [log_dirs.size_text(size) for size in (0, 1023, 1024, 5 << 20)] == ["0 B", "1023 B", "1.0 KiB", "5.0 MiB"]


@pytest.mark.parametrize(
    ("text", "groups", "words"),
    [
        ("t,0\n", ["g"], "line 1: topic,partition,offset is expected"),
        ("t,0,x\n", ["g"], "numbers in the last two"),
        ("g,t,0,1\nt,0,1\n", ["g", "h"], "line 2: group,topic,partition,offset is expected"),
    ],
)
def test_error_in_a_csv_file_contains_the_line(tmp_path, text, groups, words):
    path = tmp_path / "offsets.csv"
    path.write_text(text)
    with pytest.raises(ToolError, match=words):
        resetting.read_plan(str(path), groups)


def test_csv_file_may_have_several_groups(tmp_path):
    path = tmp_path / "offsets.csv"
    path.write_text('g,t,0,5\nh,"t,u",1,6\n\n')
    assert resetting.read_plan(str(path), ["g", "h"]) == {
        "g": {TopicPartition("t", 0): 5},
        "h": {TopicPartition("t,u", 1): 6},
    }
