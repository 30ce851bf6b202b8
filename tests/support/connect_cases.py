"""Transformations and their input records. Tests compare Kavka's results with Apache's."""

from __future__ import annotations

from typing import Any

_TIMESTAMP = "org.apache.kafka.connect.data.Timestamp"
_FIELDS = [
    {"type": "int32", "optional": False, "field": "id"},
    {"type": "string", "optional": True, "field": "name"},
    {"type": "double", "optional": False, "field": "price"},
    {"type": "boolean", "optional": False, "field": "paid"},
    {"type": "string", "optional": True, "field": "note"},
    {"type": "int64", "optional": False, "name": _TIMESTAMP, "version": 1, "field": "at"},
    {"type": "int64", "optional": False, "field": "ms"},
    {"type": "string", "optional": False, "field": "text"},
    {
        "type": "struct",
        "fields": [
            {"type": "string", "optional": False, "field": "city"},
            {
                "type": "struct",
                "fields": [{"type": "int32", "optional": False, "field": "floor"}],
                "optional": False,
                "field": "flat",
            },
        ],
        "optional": False,
        "field": "home",
    },
    {"type": "array", "items": {"type": "int32", "optional": False}, "optional": False, "field": "list"},
]
VALUE = {
    "id": 7,
    "name": "Ann",
    "price": 12.75,
    "paid": True,
    "note": None,
    "at": 1700000000123,
    "ms": 1700000000123,
    "text": "2023-11-14 22:13:20",
    "home": {"city": "Bern", "flat": {"floor": 3}},
    "list": [1, 2],
}
WITH_SCHEMA = {"schema": {"type": "struct", "fields": _FIELDS, "optional": False}, "payload": VALUE}
TEXT_KEY = {"schema": {"type": "string", "optional": False}, "payload": "k1"}
NUMBER = {"schema": {"type": "int32", "optional": False}, "payload": 5}

_TRANSFORMATIONS: list[tuple[str, dict[str, str]]] = [
    ("InsertField$Value", {"topic.field": "t", "partition.field": "p", "offset.field": "o", "static.field": "s",
                           "static.value": "x"}),
    ("InsertField$Value", {"timestamp.field": "when"}),
    ("ReplaceField$Value", {"exclude": "name,home,at", "renames": "id:number,price:cost"}),
    ("ReplaceField$Value", {"include": "id,text"}),
    ("ReplaceField$Value", {"blacklist": "home,list"}),
    ("MaskField$Value", {"fields": "id,name,price,paid,note,list"}),
    ("MaskField$Value", {"fields": "name,id", "replacement": "99"}),
    ("ValueToKey", {"fields": "id,name"}),
    ("HoistField$Value", {"field": "all"}),
    ("HoistField$Key", {"field": "k"}),
    ("ExtractField$Value", {"field": "text"}),
    ("ExtractField$Value", {"field": "home"}),
    ("ExtractField$Value", {"field": "home.flat.floor", "field.syntax.version": "V2"}),
    ("ExtractField$Value", {"field": "missing"}),
    ("ExtractField$Key", {"field": "any"}),
    ("Flatten$Value", {}),
    ("Flatten$Value", {"delimiter": "_"}),
    ("Cast$Value", {"spec": "id:string,price:int32,paid:string,ms:float64"}),
    ("Cast$Value", {"spec": "list:string"}),
    ("Cast$Value", {"spec": "id:int64,price:float32,paid:int8,text:boolean"}),
    ("Cast$Value", {"spec": "text:int32"}),
    ("Cast$Value", {"spec": "at:int64"}),
    ("TimestampConverter$Value", {"field": "ms", "target.type": "string", "format": "yyyy-MM-dd'T'HH:mm:ss.SSS"}),
    ("TimestampConverter$Value", {"field": "text", "target.type": "unix", "format": "yyyy-MM-dd HH:mm:ss"}),
    ("TimestampConverter$Value", {"field": "text", "target.type": "unix", "format": "yyyy-MM-dd HH:mm:ss",
                                  "unix.precision": "seconds"}),
    ("TimestampConverter$Value", {"field": "text", "target.type": "Timestamp", "format": "yyyy-MM-dd HH:mm:ss"}),
    ("TimestampConverter$Value", {"field": "text", "target.type": "unix", "format": "dd.MM.yyyy"}),
    ("TimestampRouter", {}),
    ("TimestampRouter", {"topic.format": "${timestamp}/${topic}", "timestamp.format": "yyyy-MM"}),
    ("RegexRouter", {"regex": "(.*)-(.*)", "replacement": "$2.$1"}),
    ("RegexRouter", {"regex": "orders", "replacement": "x"}),
    ("InsertHeader", {"header": "h", "value.literal": "some text"}),
    ("InsertHeader", {"header": "n", "value.literal": "42"}),
    ("DropHeaders", {"headers": "trace"}),
    ("HeaderFrom$Value", {"fields": "id,name", "headers": "h1,h2", "operation": "copy"}),
    ("HeaderFrom$Value", {"fields": "name,note", "headers": "h1,h2", "operation": "move"}),
    ("SetSchemaMetadata$Value", {"schema.name": "com.example.Order", "schema.version": "3"}),
    ("Filter", {}),
]  # fmt: skip


def cases() -> list[dict[str, Any]]:
    """Return each transformation with a record with and without a schema."""
    cases = []
    headers = [["trace", "abc"], ["other", "x"]]
    for schemas, key, value in ((True, TEXT_KEY, WITH_SCHEMA), (False, "k1", VALUE)):
        for class_name, config in _TRANSFORMATIONS:
            if not schemas and class_name.startswith("SetSchemaMetadata"):
                continue
            case = {"type": class_name, "config": config, "schemas": schemas, "key": key, "value": value}
            cases.append({**case, "timestamp": 1700000000123, "headers": headers})
    base = {"schemas": True, "key": TEXT_KEY, "timestamp": 1700000000123, "headers": []}
    for class_name, config in (
        ("InsertField$Value", {"static.field": "s", "static.value": "x"}),
        ("ReplaceField$Value", {"exclude": "a"}),
        ("MaskField$Value", {"fields": "a"}),
        ("ExtractField$Value", {"field": "a"}),
        ("Flatten$Value", {}),
        ("Cast$Value", {"spec": "string"}),
    ):
        cases.append({**base, "type": class_name, "config": config, "value": NUMBER})
    cases.append({**base, "type": "TimestampRouter", "config": {}, "value": NUMBER, "timestamp": None})
    return cases
