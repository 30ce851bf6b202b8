"""Generated records: their fields, rate and limit."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from kavka.pipeline.connect.connectors import datagen
from kavka.pipeline.connect.connectors.datagen import SCHEMAS, DatagenSource, fields
from kavka.pipeline.connect.options import parse, parsed


def test_fields_have_a_name_a_type_and_a_generator() -> None:
    parsed_fields = fields(
        "id BIGINT id, name STRING 'a, {1..9}', n INT 1..3, color STRING red|dark\\ blue, ok BOOLEAN"
    )
    assert [(field.name, field.kind) for field in parsed_fields] == [
        ("id", "BIGINT"), ("name", "STRING"), ("n", "INT"), ("color", "STRING"), ("ok", "BOOLEAN"),
    ]  # fmt: skip
    assert parsed_fields[0].column("n", 1) == "CAST(n AS BIGINT)"
    assert r"'dark\\ blue'" in parsed_fields[3].column("n", 1)


@pytest.mark.parametrize("text", ["", "id", "id UUID", "n INT 9..1", "n INT a..b", "a INT, a INT", "s STRING '{x..y}'"])
def test_invalid_schemas_are_rejected(text: str) -> None:
    with pytest.raises(ValueError):
        fields(text)


@pytest.mark.parametrize("name", SCHEMAS)
def test_predefined_schemas_have_their_keys(name: str) -> None:
    key, schema = SCHEMAS[name]
    assert key in [field.name for field in fields(schema)]


@pytest.mark.parametrize(
    ("originals", "name"),
    [
        ({}, "schema"),
        ({"schema": "a INT", "quickstart": "users"}, "schema"),
        ({"quickstart": "nothing"}, "quickstart"),
        ({"schema": "a WORD"}, "schema"),
        ({"schema": "a INT", "schema.keyfield": "b"}, "schema.keyfield"),
    ],
)
def test_invalid_options_are_reported(originals: dict[str, str], name: str) -> None:
    originals = {"kafka.topic": "t", **originals}
    values, errors = parse(DatagenSource.options, originals)
    assert name in errors or name in DatagenSource.check(values, originals)


def test_records_follow_the_rate_and_end_at_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr(datagen, "time", SimpleNamespace(monotonic=lambda: now))
    originals = {"kafka.topic": "t", "quickstart": "users", "rows.per.second": "10", "iterations": "25"}
    context: Any = Context(parsed(DatagenSource.options, originals))
    source = DatagenSource()
    source.start(context)
    start = {"datagen": {"count": 3}}
    assert source.next(context, start) is None
    now += 1.5
    assert source.next(context, start) == {"datagen": {"count": 18}}
    now += 60
    assert source.next(context, {"datagen": {"count": 18}}) == {"datagen": {"count": 25}}
    assert source.next(context, {"datagen": {"count": 25}}) is None


class Context(dict[str, Any]):
    available_now = False
