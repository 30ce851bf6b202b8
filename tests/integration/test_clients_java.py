"""Apache's Java clients 3.9 and 4.3 work with the broker. Consumers use `assign`. Other files test
groups."""

from __future__ import annotations

import time

import pytest

from tests.support.java_client import JavaClient, JavaError
from tests.support.processes import wait_until
from tests.support.targets import Target

pytestmark = [pytest.mark.java, pytest.mark.timeout(180)]

CODECS = ("none", "gzip", "snappy", "lz4", "zstd")


def values(records: list[dict[str, object]]) -> list[object]:
    return [record["value"] for record in records]


@pytest.fixture
def created_topic(java: JavaClient, topic: str) -> str:
    java.call("createTopic", topic=topic, partitions=1)
    return topic


@pytest.mark.parametrize("acks", ["0", "1", "all"])
@pytest.mark.parametrize("codec", CODECS)
def test_records_are_read_as_sent_with_every_codec_and_acks(
    java: JavaClient, created_topic: str, codec: str, acks: str
) -> None:
    records = [{"partition": 0, "key": f"k{n}", "value": f"value {n} " * 20} for n in range(50)]
    sent = java.produce(
        created_topic, records, acks=acks, compression_type=codec, enable_idempotence="false", linger_ms="5"
    )
    if acks != "0":
        assert [entry["offset"] for entry in sent] == list(range(50))
    received = java.consume(created_topic, 50)
    assert [(r["offset"], r["key"], r["value"]) for r in received] == [
        (n, record["key"], record["value"]) for n, record in enumerate(records)
    ]


@pytest.mark.parametrize("codec", CODECS)
def test_describe_producers_returns_the_last_sequence_of_an_idempotent_producer(
    java: JavaClient, created_topic: str, codec: str
) -> None:
    records = [{"partition": 0, "value": str(n)} for n in range(500)]
    sent = java.produce(
        created_topic, records, enable_idempotence="true", acks="all", batch_size="200", compression_type=codec
    )
    assert [entry["offset"] for entry in sent] == list(range(500))
    assert values(java.consume(created_topic, 500)) == [str(n) for n in range(500)]
    producers = java.call("describeProducers", topic=created_topic)
    assert [(producer["lastSequence"], producer["epoch"]) for producer in producers] == [(499, 0)]


def test_two_idempotent_producers_get_different_ids(java: JavaClient, created_topic: str) -> None:
    for _ in range(2):
        java.produce(created_topic, [{"partition": 0, "value": "x"}], enable_idempotence="true")
    ids = {producer["id"] for producer in java.call("describeProducers", topic=created_topic)}
    assert len(ids) == 2


def test_null_and_empty_keys_and_values_are_distinct_and_headers_are_kept(java: JavaClient, created_topic: str) -> None:
    headers = [["trace", "abc"], ["trace", "again"], ["none", None], ["empty", ""]]
    java.produce(
        created_topic,
        [
            {"partition": 0, "key": None, "value": None},
            {"partition": 0, "key": "", "value": ""},
            {"partition": 0, "key": "k", "value": None, "headers": headers, "timestamp": 1_600_000_000_123},
        ],
    )
    received = java.consume(created_topic, 3)
    assert [(r["key"], r["value"], r["headers"]) for r in received] == [
        (None, None, []),
        ("", "", []),
        ("k", None, headers),
    ]
    assert (received[2]["timestamp"], received[2]["timestampType"]) == (1_600_000_000_123, "CreateTime")


def test_large_records_and_large_batches_are_read_completely(java: JavaClient, created_topic: str) -> None:
    java.produce(
        created_topic,
        [{"partition": 0, "value": "x" * 900_000, "repeat": 20}],
        batch_size="1000000",
        linger_ms="20",
        buffer_memory="67108864",
    )
    received = java.consume(created_topic, 20, sizesOnly=True)
    assert [record["size"] for record in received] == [900_000] * 20


def test_a_record_over_max_message_bytes_is_rejected(java: JavaClient, topic: str) -> None:
    java.call("createTopic", topic=topic, configs={"max.message.bytes": "2000"})
    with pytest.raises(JavaError) as raised:
        java.produce(topic, [{"partition": 0, "value": "x" * 5000}])
    assert raised.value.name == "RecordTooLargeException"
    java.produce(topic, [{"partition": 0, "value": "x" * 500}])


def test_a_consumer_starts_at_the_beginning_an_offset_a_time_or_the_end(java: JavaClient, created_topic: str) -> None:
    records = [{"partition": 0, "value": str(n), "timestamp": 1_600_000_000_000 + n * 1000} for n in range(100)]
    java.produce(created_topic, records, batch_size="300")
    assert values(java.consume(created_topic, 100))[0] == "0"
    assert values(java.consume(created_topic, 40, {"offset": 60})) == [str(n) for n in range(60, 100)]
    assert values(java.consume(created_topic, 50, {"time": 1_600_000_000_000 + 49_001})) == [
        str(n) for n in range(50, 100)
    ]
    assert java.consume(created_topic, 1, {"end": True}, timeoutMs=600) == []
    assert java.consume(created_topic, 1, {"time": 1_700_000_000_000}, timeoutMs=600) == []


def test_offsets_are_listed_by_special_timestamps(java: JavaClient, created_topic: str) -> None:
    timestamps = [1_600_000_000_000, 1_600_000_009_000, 1_600_000_004_000]
    java.produce(
        created_topic,
        [{"partition": 0, "value": "v", "timestamp": timestamp} for timestamp in timestamps],
        batch_size="0",
    )
    response = java.call("offsets", topic=created_topic, time=1_600_000_003_000)
    assert {name: entry["offset"] for name, entry in response.items()} == {
        "earliest": 0,
        "latest": 3,
        "maxTimestamp": 1,
        "time": 1,
    }


def test_an_offset_out_of_range_is_an_error_without_a_reset_policy(java: JavaClient, created_topic: str) -> None:
    java.produce(created_topic, [{"partition": 0, "value": "x"}])
    with pytest.raises(JavaError) as raised:
        java.consume(created_topic, 1, {"offset": 99}, config={"auto.offset.reset": "none"})
    assert raised.value.name == "OffsetOutOfRangeException"


def test_a_topic_is_created_by_the_first_record_sent_to_it(java: JavaClient, topic: str) -> None:
    sent = java.produce(topic, [{"value": "first"}])
    assert sent[0]["offset"] == 0
    assert values(java.consume(topic, 1)) == ["first"]


def test_topics_are_created_described_extended_and_deleted(java: JavaClient, topic: str) -> None:
    topic_info = java.call("createTopic", topic=topic, partitions=3, configs={"cleanup.policy": "compact"})
    assert (topic_info["partitions"], topic_info["replication"], topic_info["configs"]["cleanup.policy"]) == (
        3,
        1,
        "compact",
    )
    description = java.call("describeTopic", topic=topic)
    assert description["topicId"] == topic_info["topicId"]
    assert [p["partition"] for p in description["partitions"]] == [0, 1, 2]
    assert all(p["leader"] >= 0 and p["isr"] == p["replicas"] == [p["leader"]] for p in description["partitions"])

    java.call("createPartitions", topic=topic, partitions=5)
    wait_until(lambda: len(java.call("describeTopic", topic=topic)["partitions"]) == 5, timeout=10, what="5 partitions")
    java.produce(topic, [{"partition": 4, "key": "k", "value": "new"}])
    assert values(java.consume(topic, 1, partition=4)) == ["new"]

    assert topic in java.call("listTopics")
    java.call("deleteTopicById", topicId=topic_info["topicId"])
    wait_until(lambda: topic not in java.call("listTopics"), timeout=10, what="the deletion of the topic")


def test_a_recreated_topic_is_empty_and_has_a_new_id(java: JavaClient, topic: str) -> None:
    first_id = java.call("createTopic", topic=topic)["topicId"]
    java.produce(topic, [{"partition": 0, "value": "old"}])
    java.call("deleteTopic", topic=topic)
    recreated_ids: list[str] = []

    def recreate() -> bool:
        try:
            recreated_ids.append(java.call("createTopic", topic=topic)["topicId"])
        except JavaError as error:
            assert error.name == "TopicExistsException"
        return bool(recreated_ids)

    wait_until(recreate, timeout=10, what="the deletion of the old topic")
    assert recreated_ids[0] != first_id
    java.produce(topic, [{"partition": 0, "value": "new"}])
    assert [(r["offset"], r["value"]) for r in java.consume(topic, 1)] == [(0, "new")]


def test_validate_only_creates_nothing(java: JavaClient, topic: str) -> None:
    assert java.call("createTopic", topic=topic, partitions=2, validateOnly=True)["partitions"] == 2
    assert topic not in java.call("listTopics")


def test_a_topic_is_created_with_a_replica_assignment(java: JavaClient, topic: str) -> None:
    node = java.call("describeCluster")["nodes"][0]
    assert java.call("createTopic", topic=topic, assignments=[[node], [node]])["partitions"] == 2


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ({"topic": "with/slash"}, "InvalidTopicException"),
        ({"topic": ".."}, "InvalidTopicException"),
        ({"topic": "x" * 250}, "InvalidTopicException"),
        ({"topic": "NEW", "partitions": 0}, "InvalidPartitionsException"),
        ({"topic": "NEW", "replication": 3}, "InvalidReplicationFactorException"),
        ({"topic": "NEW", "configs": {"segment.bytes": "nonsense"}}, "InvalidConfigurationException"),
        ({"topic": "NEW", "configs": {"no.such.config": "1"}}, "InvalidConfigurationException"),
        ({"topic": "NEW", "assignments": [[77]]}, "InvalidReplicaAssignmentException"),
    ],
)
def test_an_invalid_topic_is_rejected_with_kafkas_error(
    java: JavaClient, topic: str, arguments: dict[str, object], error: str
) -> None:
    name = topic if arguments["topic"] == "NEW" else arguments["topic"]
    with pytest.raises(JavaError) as raised:
        java.call("createTopic", **arguments | {"topic": name})
    assert raised.value.name == error


def test_requests_for_existing_or_unknown_topics_fail_with_kafkas_error(java: JavaClient, created_topic: str) -> None:
    for op, arguments, error in [
        ("createTopic", {"topic": created_topic}, "TopicExistsException"),
        ("createPartitions", {"topic": created_topic, "partitions": 1}, "InvalidPartitionsException"),
        ("deleteTopic", {"topic": created_topic + "-none"}, "UnknownTopicOrPartitionException"),
        ("describeTopic", {"topic": created_topic + "-none"}, "UnknownTopicOrPartitionException"),
        ("createPartitions", {"topic": created_topic + "-none", "partitions": 2}, "UnknownTopicOrPartitionException"),
        ("deleteTopicById", {"topicId": "AAAAAAAAAAAAAAAAAAAAFg"}, "UnknownTopicIdException"),
    ]:
        with pytest.raises(JavaError) as raised:
            java.call(op, **arguments)
        assert raised.value.name == error, op


def test_topic_configs_are_described_with_their_source_and_take_effect_at_once(
    java: JavaClient, created_topic: str
) -> None:
    configs = java.call("describeConfigs", type="TOPIC", name=created_topic)
    assert configs["segment.bytes"]["source"] == "DEFAULT_CONFIG"
    assert configs["segment.bytes"]["synonyms"] == [["log.segment.bytes", "1073741824", "DEFAULT_CONFIG"]]
    assert all(entry["documented"] for entry in configs.values())

    changes = [["SET", "max.message.bytes", "1000"], ["SET", "cleanup.policy", "compact"]]
    java.call("alterConfigs", type="TOPIC", name=created_topic, changes=changes)
    java.call("alterConfigs", type="TOPIC", name=created_topic, changes=[["APPEND", "cleanup.policy", "delete"]])

    def has_changed() -> bool:
        configs = java.call("describeConfigs", type="TOPIC", name=created_topic)
        return (configs["max.message.bytes"]["value"], configs["cleanup.policy"]["value"]) == ("1000", "compact,delete")

    wait_until(has_changed, timeout=10, what="the new configs")
    entry = java.call("describeConfigs", type="TOPIC", name=created_topic)["max.message.bytes"]
    assert entry["source"] == "DYNAMIC_TOPIC_CONFIG"
    assert entry["synonyms"][0] == ["max.message.bytes", "1000", "DYNAMIC_TOPIC_CONFIG"]
    with pytest.raises(JavaError) as raised:
        java.produce(created_topic, [{"partition": 0, "key": "k", "value": "x" * 3000}])
    assert raised.value.name == "RecordTooLargeException"

    java.call("alterConfigs", type="TOPIC", name=created_topic, changes=[["DELETE", "max.message.bytes", None]])
    wait_until(
        lambda: (
            java.call("describeConfigs", type="TOPIC", name=created_topic)["max.message.bytes"]["value"] == "1048588"
        ),
        timeout=10,
        what="the default value",
    )
    java.produce(created_topic, [{"partition": 0, "key": "k", "value": "x" * 3000}])


def test_broker_configs_are_described_and_dynamic_configs_can_change(java: JavaClient) -> None:
    node = str(java.call("describeCluster")["nodes"][0])
    configs = java.call("describeConfigs", type="BROKER", name=node)
    assert configs["log.dirs"]["source"] == "STATIC_BROKER_CONFIG"
    assert configs["log.dirs"]["readOnly"] is True
    assert configs["message.max.bytes"]["value"] == "1048588"
    java.call("alterConfigs", type="BROKER", name="", changes=[["SET", "log.retention.ms", "86400000"]])
    try:

        def has_dynamic_default() -> bool:
            entry = java.call("describeConfigs", type="BROKER", name=node)["log.retention.ms"]
            return (entry["value"], entry["source"]) == ("86400000", "DYNAMIC_DEFAULT_BROKER_CONFIG")

        wait_until(has_dynamic_default, timeout=10, what="the dynamic default")
    finally:
        java.call("alterConfigs", type="BROKER", name="", changes=[["DELETE", "log.retention.ms", None]])
    for changes, error in [
        ([["SET", "log.dirs", "/elsewhere"]], "InvalidRequestException"),
        ([["SET", "log.retention.ms", "nonsense"]], "InvalidRequestException"),
    ]:
        with pytest.raises(JavaError) as raised:
            java.call("alterConfigs", type="BROKER", name=node, changes=changes)
        assert raised.value.name == error


def test_records_are_deleted_up_to_an_offset(java: JavaClient, created_topic: str) -> None:
    java.produce(created_topic, [{"partition": 0, "value": str(n)} for n in range(10)])
    assert java.call("deleteRecords", topic=created_topic, offset=4) == 4
    assert values(java.consume(created_topic, 6)) == [str(n) for n in range(4, 10)]
    assert java.call("offsets", topic=created_topic)["earliest"]["offset"] == 4
    assert java.call("deleteRecords", topic=created_topic, offset=-1) == 10
    with pytest.raises(JavaError) as raised:
        java.call("deleteRecords", topic=created_topic, offset=11)
    assert raised.value.name == "OffsetOutOfRangeException"


def test_log_dirs_are_described_with_the_size_of_each_replica(
    java: JavaClient, created_topic: str, target: Target
) -> None:
    java.produce(created_topic, [{"partition": 0, "value": "x" * 1000}])
    node = java.call("describeCluster")["nodes"][0]
    folders = java.call("logDirs", broker=node)
    assert list(folders) == [str(target.log_dirs[0])]
    entry = folders[str(target.log_dirs[0])]
    assert entry["error"] is None and entry["total"] > entry["usable"] > 0
    replica = entry["replicas"][f"{created_topic}-0"]
    assert (replica["lag"], replica["future"]) == (0, False)
    assert replica["size"] >= 1000


def test_the_broker_sets_log_append_time(java: JavaClient, topic: str) -> None:
    java.call("createTopic", topic=topic, configs={"message.timestamp.type": "LogAppendTime"})
    start_ms = int(time.time() * 1000)
    sent = java.produce(topic, [{"partition": 0, "value": "x", "timestamp": 5}])
    received = java.consume(topic, 1)[0]
    assert received["timestampType"] == "LogAppendTime"
    assert start_ms - 1 <= received["timestamp"] <= int(time.time() * 1000) + 1
    assert sent[0]["timestamp"] == received["timestamp"]


@pytest.mark.parametrize("codec", CODECS[1:])
def test_a_topic_with_a_compression_type_stores_all_records(java: JavaClient, topic: str, codec: str) -> None:
    java.call("createTopic", topic=topic, configs={"compression.type": codec})
    records = [{"partition": 0, "key": str(n), "value": str(n) * 30, "headers": [["n", str(n)]]} for n in range(100)]
    java.produce(topic, records, compression_type="gzip" if codec == "zstd" else "none")
    received = java.consume(topic, 100)
    assert [(r["key"], r["value"], r["headers"]) for r in received] == [
        (r["key"], r["value"], r["headers"]) for r in records
    ]


def test_a_compacted_topic_rejects_a_record_without_a_key(java: JavaClient, topic: str) -> None:
    java.call("createTopic", topic=topic, configs={"cleanup.policy": "compact"})
    with pytest.raises(JavaError) as raised:
        java.produce(topic, [{"partition": 0, "value": "no key"}])
    assert raised.value.name == "InvalidRecordException"
    java.produce(topic, [{"partition": 0, "key": "k", "value": "v"}])


def test_timestamps_too_far_in_the_future_or_past_are_rejected(java: JavaClient, topic: str) -> None:
    bounds = {"message.timestamp.after.max.ms": "3600000", "message.timestamp.before.max.ms": "3600000"}
    java.call("createTopic", topic=topic, configs=bounds)
    now = int(time.time() * 1000)
    for timestamp in (now + 7_200_000, now - 7_200_000):
        with pytest.raises(JavaError) as raised:
            java.produce(topic, [{"partition": 0, "value": "x", "timestamp": timestamp}])
        assert raised.value.name == "InvalidTimestampException"
    java.produce(topic, [{"partition": 0, "value": "x", "timestamp": now}])


def test_the_cluster_is_described_with_id_and_controller(java: JavaClient) -> None:
    cluster = java.call("describeCluster")
    assert len(cluster["clusterId"]) == 22
    assert cluster["controller"] in cluster["nodes"]
