"""Conversion of request inputs to the arguments of an operation."""

from __future__ import annotations

from enum import Enum
from typing import Annotated

import pytest

from kavka.console import registry
from kavka.console.errors import Refused
from kavka.console.registry import SECRET, Bounds, Done, action, audited_arguments, query


class Colour(Enum):
    RED = "red"
    BLUE = "blue"


@pytest.fixture
def operation(monkeypatch):
    monkeypatch.setattr(registry, "OPERATIONS", {})

    @action("/things/{thing}/paint", "Paint a thing")
    async def paint(
        context: object,
        thing: str,
        colour: Colour,
        coats: Annotated[int, "How many", Bounds(1, 5)] = 1,
        brokers: list[int] | None = None,
        configs: dict[str, str] | None = None,
        dry: bool = False,
        password: Annotated[str, SECRET] = "",
        limit: float | None = None,
    ) -> Done:
        return Done("painted")

    return registry.OPERATIONS["paint"]


def test_form_is_converted_by_annotations(operation):
    inputs = {
        "csrf": ["x"], "colour": ["red"], "coats": ["3"], "brokers": ["1, 2", "3"], "configs.a.b": ["c"], "dry": ["on"],
        "limit": [""],
    }  # fmt: skip
    arguments = operation.arguments({"thing": "door", "cluster": "x"}, inputs)
    assert arguments == {
        "thing": "door", "colour": Colour.RED, "coats": 3, "brokers": [1, 2, 3], "configs": {"a.b": "c"}, "dry": True,
        "password": "", "limit": None,
    }  # fmt: skip


def test_json_is_converted_by_annotations(operation):
    arguments = operation.arguments(
        {"thing": "door"}, {"colour": "blue", "coats": 2, "brokers": [1], "configs": {"a": None}, "dry": False}
    )
    assert (arguments["coats"], arguments["brokers"], arguments["configs"]) == (2, [1], {"a": None})


@pytest.mark.parametrize(
    ("inputs", "line"),
    [
        ({}, "colour is missing"),
        ({"colour": ""}, "colour must be one of red, blue, not ''"),
        ({"colour": "green"}, "colour must be one of red, blue, not 'green'"),
        ({"colour": "red", "coats": "many"}, "coats must be a whole number, not 'many'"),
        ({"colour": "red", "coats": 9}, "coats must be between 1 and 5, not 9"),
        ({"colour": "red", "coats": 1.5}, "coats must be a whole number, not '1.5'"),
        ({"colour": "red", "coats": True}, "coats must be a whole number, not 'True'"),
        ({"colour": "red", "coats": "9" * 5000}, "coats must be a whole number, not '999"),
        ({"colour": "red", "limit": "nan"}, "limit must be a number, not 'nan'"),
        ({"colour": "red", "brokers": "1,x"}, "brokers must be a whole number, not 'x'"),
        ({"colour": "red", "configs": "x"}, "configs must be an object"),
        ({"colour": ["red", "blue"]}, "colour was given 2 times"),
        ({"colour": "red", "other": "x"}, "other: there is no such input here"),
        ({"colour": {"a": 1}}, "colour must be one of red, blue"),
    ],
)
def test_invalid_input_is_rejected_with_its_name(operation, inputs, line):
    with pytest.raises(Refused) as refused:
        operation.arguments({"thing": "door"}, inputs)
    assert str(refused.value).startswith(line)
    assert refused.value.field == line.split()[0].rstrip(":")


def test_audit_log_omits_secrets_and_truncates(operation):
    arguments = operation.arguments({"thing": "x" * 600}, {"colour": "red", "password": "hidden"})
    assert audited_arguments(operation, arguments) == {
        "thing": "x" * 500 + "…", "colour": "red", "password": "(not kept)"
    }  # fmt: skip


def test_duplicate_operation_raises_error(operation):
    async def paint(context: object) -> None: ...

    with pytest.raises(ValueError, match="two operations paint"):
        query("/other", "Another")(paint)


def test_unsupported_parameter_type_raises_error():
    async def strange(context: object, what: set[int]) -> None: ...

    with pytest.raises(TypeError, match="what"):
        query("/strange", "Strange")(strange)
