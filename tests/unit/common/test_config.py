from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kavka.common.config import (
    BOOLEAN,
    DOUBLE,
    INT,
    LIST,
    LONG,
    PASSWORD,
    SHORT,
    STRING,
    AtLeast,
    AtMost,
    Between,
    ConfigError,
    ConfigKey,
    ConfigTable,
    EachOneOf,
    OneOf,
)


def table(*keys: ConfigKey, **more) -> ConfigTable:
    return ConfigTable("test", keys, **more)


@pytest.mark.parametrize(
    ("type", "text", "value"),
    [
        (BOOLEAN, " TRUE ", True),
        (BOOLEAN, "false", False),
        (INT, "+7", 7),
        (INT, "-2147483648", -(2**31)),
        (LONG, "9223372036854775807", 2**63 - 1),
        (SHORT, "32767", 32767),
        (DOUBLE, "1e3", 1000.0),
        (STRING, "  x y ", "x y"),
        (PASSWORD, " secret ", " secret "),
        (LIST, "a, b ,c", ("a", "b", "c")),
        (LIST, "", ()),
    ],
)
def test_text_is_parsed_by_type(type, text, value):
    assert ConfigKey("k", type, None, "").parse(text) == value


@pytest.mark.parametrize(
    ("type", "text"),
    [
        (BOOLEAN, "yes"),
        (INT, "1_000"),
        (INT, "2147483648"),
        (INT, "1.5"),
        (INT, ""),
        (INT, "٣"),
        (SHORT, "40000"),
        (LONG, "9223372036854775808"),
        (DOUBLE, "nan"),
        (DOUBLE, "1_0.5"),
        (DOUBLE, "half"),
    ],
)
def test_text_of_another_type_is_rejected_in_one_line_with_the_name(type, text):
    with pytest.raises(ConfigError, match=r"^some\.key: .* it must be .*$") as caught:
        ConfigKey("some.key", type, None, "").parse(text)
    assert caught.value.name == "some.key"
    assert "\n" not in str(caught.value)


def test_error_does_not_contain_secret():
    key = ConfigKey("ssl.password", PASSWORD, None, "", OneOf(("x",)))
    with pytest.raises(ConfigError) as caught:
        key.parse("hunter2")
    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize(
    ("validator", "good", "bad", "words"),
    [
        (AtLeast(1), 1, 0, "at least 1"),
        (AtMost(9, "other.key"), 9, 10, r"at most 9 \(other\.key\)"),
        (Between(0, 1), 1, 2, "between 0 and 1"),
        (OneOf(("a", "b")), "a", "A", "one of a, b"),
        (OneOf(("A",), ignore_case=True), "a", "b", "one of A"),
        (EachOneOf(("a", "b")), ("a", "b"), ("a", "c"), "one or more of a, b"),
        (EachOneOf(("a", "b")), ("a",), (), "one or more of a, b"),
    ],
)
def test_validators_reject_values_and_describe_allowed_values(validator, good, bad, words):
    key = ConfigKey("k", STRING, None, "", validator)
    key.check(good)
    with pytest.raises(ConfigError, match=words):
        key.check(bad)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, None),
        (True, "true"),
        (12, "12"),
        (("a", "b"), "a,b"),
        ((), ""),
        (0.5, "0.5"),
        (1.0, "1.0"),
        (0.0, "0.0"),
        (12345678.0, "1.2345678E7"),
        (0.00025, "2.5E-4"),
        (1.7976931348623157e308, "1.7976931348623157E308"),
    ],
)
def test_values_are_formatted_as_in_java(value, text):
    assert ConfigKey("k", STRING, None, "").format(value) == text


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_formatted_double_round_trips(number):
    key = ConfigKey("k", DOUBLE, None, "")
    assert key.parse(key.format(number)) == number


def test_parse_returns_defaults_and_values():
    t = table(ConfigKey("a", INT, 1, ""), ConfigKey("b", STRING, None, ""))
    assert t.parse({"a": "2"}) == {"a": 2, "b": None}
    assert t.parse({"a": "2"}, defaults=False) == {"a": 2}


def test_unknown_name_is_a_warning_with_a_suggestion():
    warnings: list[str] = []
    t = table(ConfigKey("log.retention.ms", INT, 1, ""), unsupported_prefixes={"remote.": "not here"})
    assert t.parse({"log.retenton.ms": "2", "zzz": "1", "remote.x": "1"}, warnings=warnings) == {"log.retention.ms": 1}
    assert warnings == [
        "log.retenton.ms is not a known test config and is ignored; did you mean log.retention.ms?",
        "zzz is not a known test config and is ignored",
        "remote.x is not a known test config and is ignored (not here)",
    ]


def test_unknown_name_is_an_error_if_strict():
    t = table(ConfigKey("a", INT, 1, ""))
    with pytest.raises(ConfigError, match=r"^zzz: there is no such test config"):
        t.parse({"zzz": "1"}, strict=True)
    with pytest.raises(ConfigError, match=r"^zzz"):
        t.parse_one("zzz", "1")


def test_setting_without_effect_warns_only_when_set():
    t = table(ConfigKey("a", INT, 1, "", warning="has no effect yet"))
    warnings: list[str] = []
    t.parse({}, warnings=warnings)
    assert warnings == []
    t.parse({"a": "1"}, warnings=warnings)
    assert warnings == ["a has no effect yet"]


def test_rules_between_settings_include_defaults():
    t = table(
        ConfigKey("low", INT, 1, ""),
        ConfigKey("high", INT, 5, ""),
        checks=(lambda values: [("low", AtMost(values["high"], "high"))],),
    )
    t.parse({"low": "5"}, defaults=False)
    with pytest.raises(ConfigError, match=r"^low: 6 is not allowed; it must be at most 5 \(high\)$"):
        t.parse({"low": "6"}, defaults=False)


def test_table_rejects_duplicate_names_and_invalid_defaults():
    with pytest.raises(ValueError, match="twice"):
        table(ConfigKey("a", INT, 1, ""), ConfigKey("a", INT, 1, ""))
    with pytest.raises(ConfigError):
        table(ConfigKey("a", INT, 0, "", AtLeast(1)))
