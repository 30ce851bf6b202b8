"""Decoders of text: JSON of znodes, properties files, and the console's messages and filter
expressions."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from decimal import Decimal
from io import BytesIO
from pathlib import Path

from fastavro import parse_schema, schemaless_writer, writer

from kavka.common.properties import PropertiesError, parse_properties
from kavka.common.types import TopicPartition
from kavka.console.decoders import DECODERS, decode, decode_internal
from kavka.console.expressions import BadExpression, compile_expression
from kavka.console.limits import Budget, TooLarge
from kavka.metadata import paths
from tests.fuzz.engine import Target
from tests.unit.protocol.cases import CASES, golden_of

GOLDEN_ZNODES = Path(__file__).parents[1] / "golden" / "znodes" / "3.9.1.json"

# --- znodes

_NODES: Sequence[Callable[[bytes], object]] = (
    lambda data: paths.BrokerRegistration.decode(1, data),
    paths.ControllerNode.decode,
    paths.decode_epoch,
    lambda data: paths.TopicNode.decode("orders", data),
    lambda data: paths.PartitionStateNode.decode(TopicPartition("orders", 0), data),
    paths.decode_config,
    paths.decode_config_change,
    paths.decode_reassignment,
    paths.decode_partitions,
    paths.decode_log_dir_event,
    paths.decode_cluster_id,
    paths.ProducerIdBlock.decode,
    paths.decode_features,
    paths.decode_feature_levels,
    paths.decode_offset,
)


def _znode_seeds() -> Sequence[bytes]:
    trees = json.loads(GOLDEN_ZNODES.read_text())
    nodes = {node["data"].encode() for tree in trees.values() for node in tree.values() if node["data"]}
    unusual = [
        json.dumps(_with_values(json.loads(node), value)).encode() for node in nodes for value in _UNUSUAL_VALUES
    ]
    return [b'{"config":' * 10_000, b"9" * 5_000, *sorted(nodes), *sorted(set(unusual))]


_UNUSUAL_VALUES = (None, True, -1, 1.5, "", "x", [], ["x"], [None], {}, {"x": "y"}, {"0": [1]})


def _with_values(node: object, value: object) -> object:
    """Return the node with every member replaced by `value`."""
    return dict.fromkeys(node, value) if isinstance(node, dict) else value


def _run_znodes(data: bytes) -> None:
    for decode_node in _NODES:
        try:
            decode_node(data)
        except paths.MalformedNode:
            continue


# --- properties


def _run_properties(data: bytes) -> None:
    try:
        parse_properties(data.decode(errors="surrogateescape"))
    except PropertiesError:
        return


# --- the console

AVRO_SCHEMA = {
    "type": "record",
    "name": "Order",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "note", "type": ["null", "string"]},
        {"name": "price", "type": {"type": "bytes", "logicalType": "decimal", "precision": 30, "scale": 4}},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {"name": "tags", "type": {"type": "map", "values": "string"}},
        {"name": "lines", "type": {"type": "array", "items": {"type": "record", "name": "Empty", "fields": []}}},
        {"name": "next", "type": ["null", "Order"]},
    ],
}
AVRO_JSON = json.dumps(AVRO_SCHEMA)


def _order(next_order: dict[str, object] | None = None) -> dict[str, object]:
    at = 1_700_000_000_000
    order = {"id": 7, "note": "ä", "price": Decimal("0.0256"), "at": at, "tags": {"a": "b"}, "lines": [{}, {}]}
    return {**order, "next": next_order}


def _message_seeds() -> Sequence[bytes]:
    plain, container = BytesIO(), BytesIO()
    schema = parse_schema(AVRO_SCHEMA)
    schemaless_writer(plain, schema, _order(_order()))
    writer(container, schema, [_order(_order())])
    document = b'{"a": [1, 2.5, null, true], "b": {"c": "\\u00e4"}}'
    texts = (b"", b"plain text", document, b"[" * 300, b"[" * 60_000, b"9" * 5_000, b"1e999", b"\xff\xfe")
    numbers = (bytes(4), bytes(8), b"\x7f\xf0" + bytes(6))
    return [plain.getvalue(), b"\0\0\0\0\1" + plain.getvalue(), container.getvalue(), *texts, *numbers]


def _run_messages(data: bytes) -> None:
    """Every decoder accepts any bytes. It shows invalid bytes as hex or text with the reason."""
    for name in DECODERS:
        decode(data, name, AVRO_JSON if name == "avro" else "").text.encode()


def _internal_seeds() -> Sequence[bytes]:
    """Return the length of the key in two bytes, the key and the value. Key and value start with
    their version."""
    seeds = []
    stored = {case.schema.name: case for case in CASES}
    for name, case in stored.items():
        if name.endswith("Key") and (value := stored.get(name[:-3] + "Value")) is not None:
            for frame in golden_of(case):
                for stored_value in golden_of(value):
                    key = frame.version.to_bytes(2, "big") + frame.data
                    seeds.append(
                        len(key).to_bytes(2, "big") + key + stored_value.version.to_bytes(2, "big") + stored_value.data
                    )
    return seeds


def _run_internal(data: bytes) -> None:
    size = int.from_bytes(data[:2], "big")
    key, value = data[2 : 2 + size], data[2 + size :]
    for topic in ("__consumer_offsets", "__transaction_state"):
        decode_internal(topic, key, value, Budget())


class _Subject:
    """A message that expressions are evaluated on."""

    def __init__(self) -> None:
        self.budget = Budget()

    def text_of(self, name: str) -> str | None:
        return None if name == "key" else "text of some length"

    def data_of(self, name: str) -> object:
        match name:
            case "headers":
                return {"h": "v"}
            case "size" | "partition" | "offset" | "timestamp":
                return 12
        return {"a": list(range(300)), "b": {"c": ["x"] * 300}, "d": None, "e": 1.5}


EXPRESSIONS = (
    b'value.a[*] > 3 and key == "x"',
    b"value[*] > value[*]",
    b"value.b.c[*] == value.a[*] or not (size > 10)",
    b'headers.h contains "v" and timestamp >= "2024-01-01T00:00:00Z"',
    b'value.b.c[0] matches "x.*"',
    b"value.a[*] in value.b.c[*]",
)


def _run_expressions(data: bytes) -> None:
    try:
        test = compile_expression(data.decode(errors="replace"))
        test(_Subject())
    except (BadExpression, TooLarge):
        return


TARGETS = [
    Target("znodes", _run_znodes, _znode_seeds, 5_000),
    Target(
        "properties",
        _run_properties,
        lambda: [b"a=b\n# c\nlong\\\n  er : v\\u00e4l\n", b"broker.id=1\r\nlog.dirs=/a,/b\r\n"],
        4_000,
    ),
    Target("console-messages", _run_messages, _message_seeds, 6_000),
    Target("console-internal", _run_internal, _internal_seeds, 3_000),
    Target("console-expressions", _run_expressions, lambda: EXPRESSIONS, 4_000),
]
