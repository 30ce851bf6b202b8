"""Properties of generated messages: versions, defaults, lazy imports."""

from __future__ import annotations

import subprocess
import sys
from uuid import UUID

import pytest

from kavka.protocol.api_keys import APIS, ApiKey
from kavka.protocol.messages.api_versions import ApiVersionsResponse
from kavka.protocol.messages.fetch import FetchableTopicResponse, FetchRequest, FetchResponse, FetchTopic, PartitionData
from kavka.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from kavka.protocol.messages.produce import (
    LeaderIdAndEpoch,
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
    TopicProduceResponse,
)
from kavka.protocol.primitives import ProtocolError
from tests.unit.protocol.cases import CASES


class Slice:
    """A part of a file: it has a length, but no bytes in memory."""

    def __init__(self, size: int) -> None:
        self._size = size

    def __len__(self) -> int:
        return self._size


def test_field_of_other_version_cannot_be_set() -> None:
    request = ProduceRequest(transactional_id="me")

    with pytest.raises(ProtocolError, match="ProduceRequest v0-v2: transactional_id is set"):
        request.to_bytes(2)


def test_ignorable_field_of_other_version_may_be_set() -> None:
    topic = FetchTopic(topic="a", topic_id=UUID(int=7))

    decoded, _ = FetchRequest.decode(FetchRequest(topics=[topic]).to_bytes(12), 0, 12)

    assert decoded.topics == [FetchTopic(topic="a")]


def test_fields_of_nested_structs_and_tagged_fields_are_checked() -> None:
    leader = LeaderIdAndEpoch(leader_id=1)
    partition = PartitionProduceResponse(current_leader=leader)
    response = ProduceResponse(responses=[TopicProduceResponse(partition_responses=[partition])])

    with pytest.raises(ProtocolError, match="current_leader is set"):
        response.to_bytes(9)
    decoded, _ = ProduceResponse.decode(response.to_bytes(10), 0, 10)
    assert decoded.responses[0].partition_responses[0].current_leader == leader


def test_null_is_rejected_if_version_is_not_nullable() -> None:
    assert MetadataRequest(topics=None).to_bytes(1) == b"\xff\xff\xff\xff"
    with pytest.raises(ProtocolError, match="cannot encode MetadataRequest v0"):
        MetadataRequest(topics=None).to_bytes(0)
    with pytest.raises(ProtocolError, match=r"malformed MetadataRequest v0.*null"):
        MetadataRequest.decode(b"\xff\xff\xff\xff", 0, 0)
    with pytest.raises(ProtocolError, match="cannot encode"):
        MetadataRequest(topics=[MetadataRequestTopic(name=None)]).to_bytes(9)


@pytest.mark.parametrize("version", [8, 9])
def test_invalid_values_are_rejected(version: int) -> None:
    for bad in (
        ProduceRequest(acks=1 << 15),
        ProduceRequest(timeout_ms="soon"),
        ProduceRequest(topic_data=[TopicProduceData(name="x" * 40_000)]),
        ProduceRequest(topic_data=[TopicProduceData(name="\ud800")]),
        ProduceRequest(topic_data=[None]),
    ):
        with pytest.raises(ProtocolError, match="cannot encode ProduceRequest"):
            bad.to_bytes(version)


def test_strings_must_be_utf_8() -> None:
    with pytest.raises(ProtocolError, match="utf-8"):
        MetadataRequest.decode(b"\x00\x00\x00\x01\x00\x02\xff\xfe", 0, 0)


@pytest.mark.parametrize("version", [3, 9])
def test_string_has_at_most_32767_bytes(version: int) -> None:
    longest = ProduceRequest(transactional_id="x" * 32767)

    decoded, _ = ProduceRequest.decode(longest.to_bytes(version), 0, version)

    assert decoded == longest
    if version == 9:
        with pytest.raises(ProtocolError, match="32768 bytes, the maximum is 32767"):
            ProduceRequest.decode(b"\x81\x80\x02" + b"x" * 40_000, 0, 9)


def test_records_decode_to_view_of_input() -> None:
    request = ProduceRequest(topic_data=[TopicProduceData(partition_data=[PartitionProduceData(records=b"batch")])])
    frame = bytearray(request.to_bytes(9))

    decoded, _ = ProduceRequest.decode(memoryview(frame), 0, 9)
    records = decoded.topic_data[0].partition_data[0].records
    records[0:1] = b"B"

    assert isinstance(records, memoryview)
    assert b"Batch" in frame
    from_bytes, _ = ProduceRequest.decode(bytes(frame), 0, 9)
    assert isinstance(from_bytes.topic_data[0].partition_data[0].records, memoryview)


@pytest.mark.parametrize("version", [4, 12])
def test_file_slice_is_appended_without_copy(version: int) -> None:
    records = Slice(300)
    response = FetchResponse(responses=[FetchableTopicResponse(partitions=[PartitionData(records=records)])])
    out: list[object] = []

    response.encode(out, version)

    assert out.count(records) == 1
    before = out[out.index(records) - 1]
    assert isinstance(before, bytes) and before.endswith(b"\xad\x02" if version >= 12 else b"\x00\x00\x01\x2c")


def test_unknown_tagged_fields_are_skipped() -> None:
    plain = ProduceRequest(acks=1).to_bytes(9)
    tagged = plain[:-1] + b"\x02\x05\x03abc\x85\x01\x00"

    assert ProduceRequest.decode(tagged, 0, 9) == (ProduceRequest(acks=1), len(tagged))
    with pytest.raises(ProtocolError, match="a tagged field needs 100 bytes"):
        ProduceRequest.decode(plain[:-1] + b"\x01\x05\x64abc", 0, 9)


def test_unknown_tagged_fields_beside_known_are_skipped() -> None:
    plain = ApiVersionsResponse(finalized_features_epoch=9).to_bytes(3)
    at = plain.index(b"\x01\x01\x08")  # one tagged field, tag 1, eight bytes

    tagged = plain[:at] + b"\x02" + plain[at + 1 :] + b"\x20\x02hi"

    assert ApiVersionsResponse.decode(tagged, 0, 3) == (ApiVersionsResponse(finalized_features_epoch=9), len(tagged))


def test_tagged_field_of_wrong_size_is_rejected() -> None:
    plain = ApiVersionsResponse(finalized_features_epoch=9).to_bytes(3)

    with pytest.raises(ProtocolError, match="tagged field finalized_features_epoch does not have"):
        ApiVersionsResponse.decode(plain.replace(b"\x01\x01\x08", b"\x01\x01\x09") + b"\x00", 0, 3)


def test_default_of_struct_field_is_read_only() -> None:
    partition = PartitionProduceResponse()

    with pytest.raises(AttributeError, match="assign a new object"):
        partition.current_leader.leader_id = 5

    assert partition.current_leader == LeaderIdAndEpoch()
    assert LeaderIdAndEpoch() == PartitionProduceResponse().current_leader
    assert LeaderIdAndEpoch(leader_id=5) != partition.current_leader
    assert repr(partition.current_leader) == "LeaderIdAndEpoch(leader_id=-1, leader_epoch=-1)"


def test_lists_are_not_shared_between_objects() -> None:
    ProduceRequest().topic_data.append(TopicProduceData())
    ProduceRequest.decode(ProduceRequest().to_bytes(9), 0, 9)[0].topic_data.append(TopicProduceData())

    assert ProduceRequest().topic_data == []


def test_fields_are_keyword_only_and_misspelled_names_are_rejected() -> None:
    with pytest.raises(TypeError):
        ProduceRequest("me")
    with pytest.raises(TypeError):
        ProduceRequest(ack=1)
    with pytest.raises(AttributeError):
        ProduceRequest().ack = 1


def test_equality_and_repr() -> None:
    assert ProduceRequest() != FetchRequest()
    assert ProduceRequest() != 5
    text = repr(TopicProduceData(name="a", partition_data=[PartitionProduceData(index=1, records=bytes(100))]))
    assert "name='a'" in text
    assert "records=<100 bytes>" in text


def test_importing_a_message_does_not_import_others() -> None:
    program = (
        "import sys, kavka.protocol.headers, kavka.protocol.messages.produce;"
        "print(*(name for name in sys.modules if name.startswith('kavka.protocol.messages.')))"
    )
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)

    assert run.stdout.split() == ["kavka.protocol.messages.produce"]


def test_table_of_apis_returns_classes() -> None:
    apis = {case.schema.api_key for case in CASES if case.schema.api_key is not None}

    assert set(APIS) == apis
    for key, api in APIS.items():
        request, response = api.request_class(), api.response_class()
        assert api.key == key == request.API_KEY == response.API_KEY
        for cls in (request, response):
            assert api[3:] == (cls.MIN_VERSION, cls.MAX_VERSION, cls.FLEXIBLE_FROM)


def test_apis_have_versions_of_kafka_3_9_and_4_3() -> None:
    """A sample: the oldest version of 3.9 and the newest stable version of 4.3."""
    expected = {
        ApiKey.PRODUCE: (0, 13, 9),
        ApiKey.FETCH: (0, 18, 12),
        ApiKey.LIST_OFFSETS: (0, 11, 6),
        ApiKey.METADATA: (0, 13, 9),
        ApiKey.LEADER_AND_ISR: (0, 7, 4),
        ApiKey.UPDATE_METADATA: (0, 8, 6),
        ApiKey.CONTROLLED_SHUTDOWN: (0, 3, 3),
        ApiKey.OFFSET_FETCH: (0, 10, 6),
        ApiKey.SASL_HANDSHAKE: (0, 1, None),
        ApiKey.INIT_PRODUCER_ID: (0, 5, 2),  # version 6 of 4.3 is not stable
        ApiKey.OFFSET_DELETE: (0, 0, None),
        ApiKey.CONSUMER_GROUP_HEARTBEAT: (0, 1, 0),
    }

    assert {key: APIS[key][3:] for key in expected} == expected
    assert ApiKey.SHARE_FETCH not in APIS
