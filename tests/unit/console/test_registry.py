"""Conversion of request inputs to the arguments of an operation."""

from __future__ import annotations

from enum import Enum
from typing import Annotated

import pytest

from kavka.console import registry
from kavka.console.errors import Refused
from kavka.console.pages.brokers import change_broker_setting
from kavka.console.registry import SECRET, Bounds, Done, action, audited_arguments, query


class Colour(Enum):
    RED = "red"
    BLUE = "blue"


@pytest.fixture
def operation(monkeypatch):
    monkeypatch.setattr(registry, "OPERATIONS", {})

    @action("/doors/{door}/paint", "Paint a door")
    async def paint(
        context: object,
        door: str,
        colour: Colour,
        coats: Annotated[int, "The number of coats", Bounds(1, 5)] = 1,
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
    arguments = operation.arguments({"door": "front", "cluster": "x"}, inputs)
    assert arguments == {
        "door": "front", "colour": Colour.RED, "coats": 3, "brokers": [1, 2, 3], "configs": {"a.b": "c"}, "dry": True,
        "password": "", "limit": None,
    }  # fmt: skip


def test_json_is_converted_by_annotations(operation):
    arguments = operation.arguments(
        {"door": "front"}, {"colour": "blue", "coats": 2, "brokers": [1], "configs": {"a": None}, "dry": False}
    )
    assert (arguments["coats"], arguments["brokers"], arguments["configs"]) == (2, [1], {"a": None})


@pytest.mark.parametrize(
    ("inputs", "message"),
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
        ({"colour": ["red", "blue"]}, "colour has 2 values"),
        ({"colour": "red", "other": "x"}, "other: unknown input"),
        ({"colour": {"a": 1}}, "colour must be one of red, blue"),
    ],
)
def test_invalid_input_is_rejected_with_its_name(operation, inputs, message):
    with pytest.raises(Refused) as refused:
        operation.arguments({"door": "front"}, inputs)
    assert str(refused.value).startswith(message)
    assert refused.value.field == message.split()[0].rstrip(":")


def test_audit_log_omits_secrets_and_truncates_texts(operation):
    arguments = operation.arguments({"door": "x" * 600}, {"colour": "red", "password": "hidden"})
    assert audited_arguments(operation, arguments) == {
        "door": "x" * 500 + "…", "colour": "red", "password": "(hidden)"
    }  # fmt: skip


def test_duplicate_operation_is_rejected(operation):
    async def paint(context: object) -> None: ...

    with pytest.raises(ValueError, match="two operations with the name paint"):
        query("/other", "Another")(paint)


def test_unsupported_parameter_type_is_rejected():
    async def unsupported(context: object, numbers: set[int]) -> None: ...

    with pytest.raises(TypeError, match="numbers"):
        query("/unsupported", "Unsupported")(unsupported)


def test_values_of_sensitive_broker_settings_are_not_audited():
    change = registry.OPERATIONS[change_broker_setting.__name__]

    def audited(name):
        return audited_arguments(change, {"broker": 1, "name": name, "value": "hunter2"})["value"]

    assert audited("num.io.threads") == "hunter2"
    for name in ("ssl.keystore.password", "listener.name.internal.ssl.key.password", "sasl.jaas.config"):
        assert audited(name) == "(hidden)", name
