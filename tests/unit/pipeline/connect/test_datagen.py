"""Records that are made up: which there are to be, and when."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from kavka.pipeline.connect.connectors import datagen
from kavka.pipeline.connect.connectors.datagen import SCHEMAS, DatagenSource, fields
from kavka.pipeline.connect.options import parse, parsed


def test_fields_are_a_name_a_type_and_what_their_values_are() -> None:
    found = fields("id BIGINT id, name STRING 'a, {1..9}', n INT 1..3, color STRING red|dark\\ blue, ok BOOLEAN")
    assert [(one.name, one.kind) for one in found] == [
        ("id", "BIGINT"), ("name", "STRING"), ("n", "INT"), ("color", "STRING"), ("ok", "BOOLEAN"),
    ]  # fmt: skip
    assert found[0].column("n", 1) == "CAST(n AS BIGINT)"
    assert r"'dark\\ blue'" in found[3].column("n", 1)


@pytest.mark.parametrize("text", ["", "id", "id UUID", "n INT 9..1", "n INT a..b", "a INT, a INT", "s STRING '{x..y}'"])
def test_what_is_no_field_is_refused(text: str) -> None:
    with pytest.raises(ValueError):
        fields(text)


@pytest.mark.parametrize("name", SCHEMAS)
def test_the_ready_schemas_have_their_keys(name: str) -> None:
    key, schema = SCHEMAS[name]
    assert key in [one.name for one in fields(schema)]


@pytest.mark.parametrize(
    ("given", "name"),
    [
        ({}, "schema"),
        ({"schema": "a INT", "quickstart": "users"}, "schema"),
        ({"quickstart": "nothing"}, "quickstart"),
        ({"schema": "a WORD"}, "schema"),
        ({"schema": "a INT", "schema.keyfield": "b"}, "schema.keyfield"),
    ],
)
def test_what_cannot_be_is_told_at_its_option(given: dict[str, str], name: str) -> None:
    given = {"kafka.topic": "t", **given}
    values, errors = parse(DatagenSource.options, given)
    assert name in errors or name in DatagenSource.check(values, given)


def test_records_come_at_their_rate_and_end_after_so_many(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr(datagen, "time", SimpleNamespace(monotonic=lambda: now))
    given = {"kafka.topic": "t", "quickstart": "users", "rows.per.second": "10", "iterations": "25"}
    context: Any = Context(parsed(DatagenSource.options, given))
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
