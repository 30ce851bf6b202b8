"""Options of connectors: parsing, and Kafka Connect's config/validate."""

from __future__ import annotations

from typing import Any

import pytest

from kavka.common.config import AtLeast, ConfigType
from kavka.connect import ConfigErrors, Option, Sink, Source
from kavka.pipeline.connect import plugins
from kavka.pipeline.connect.loading import Declared
from kavka.pipeline.connect.options import config_infos, describe, parse, parsed
from kavka.pipeline.connect.settings import check_connector, seconds

TABLE = (
    Option("file", doc="A file.", group="Common"),
    Option("count", ConfigType.INT, 3, "How many.", validator=AtLeast(1), group="Common"),
    Option("secret", ConfigType.PASSWORD, None, "A word."),
)
WORKER = {"key.converter": "StringConverter", "value.converter": "StringConverter"}


class Lines(Source):
    options = (Option("topic"), Option("limit", ConfigType.INT, 1))

    @classmethod
    def check(cls, config: Any, originals: Any) -> dict[str, str]:
        return {"limit": "too many"} if (config["limit"] or 0) > 10 else {}


class NullSink(Sink):
    pass


def test_values_are_parsed_and_errors_have_kafkas_messages() -> None:
    values, errors = parse(TABLE, {"count": "0"})
    assert values == {"file": None, "count": None, "secret": None}
    assert errors["file"] == ['Missing required configuration "file" which has no default value.']
    assert errors["count"] == ["Invalid value 0 for configuration count: 0 is not allowed; it must be at least 1"]
    with pytest.raises(ConfigErrors, match=r"contains the following 2 error\(s\)"):
        parsed(TABLE, {"count": "x"})


def test_a_validate_response_has_definitions_values_and_errors() -> None:
    originals = {"file": "f", "count": "x", "secret": "s"}
    response = config_infos("Lines", TABLE, originals, {**parse(TABLE, originals)[1], "transforms.a.type": ["missing"]})
    assert (response["name"], response["error_count"], response["groups"]) == ("Lines", 2, ["Common"])
    by_name = {info["value"]["name"]: info for info in response["configs"]}
    assert by_name["file"]["definition"]["order"] == 1
    assert by_name["count"]["definition"]["order"] == 2
    assert by_name["secret"]["definition"]["order"] == -1
    assert by_name["secret"]["value"]["value"] == "[hidden]"
    assert by_name["count"]["value"]["errors"][0].startswith("Invalid value x for configuration count: ")
    assert by_name["transforms.a.type"]["definition"] is None


def test_a_definition_has_kafkas_fields() -> None:
    (definition, *_) = describe(TABLE)
    assert definition == {
        "name": "file", "type": "STRING", "required": True, "default_value": None, "importance": "MEDIUM",
        "documentation": "A file.", "group": "Common", "width": "NONE", "display_name": "file", "dependents": [],
        "order": 1,
    }  # fmt: skip


@pytest.mark.parametrize(
    "originals, name, message",
    [
        ({"topic": "t", "limit": "11"}, "limit", "too many"),
        ({"topic": "t", "value.converter": "NoConverter"}, "value.converter", "Class NoConverter could not be found"),
        ({"topic": "t", "value.converter": "JsonConverter", "value.converter.schemas.enable": "x"},
         "value.converter.schemas.enable", "it must be true or false"),
        ({"topic": "t", "transforms": "a"}, "transforms.a.type", "Missing required configuration"),
        ({"topic": "t", "transforms": "a", "transforms.a.type": "InsertField"}, "transforms.a.type", "$Key or $Value"),
        ({"topic": "t", "transforms": "a", "transforms.a.type": "InsertField$Value"}, "transforms.a.topic.field",
         "No field insertion configured"),
        ({"topic": "t", "transforms": "a,a", "transforms.a.type": "Filter"}, "transforms", "Duplicate alias"),
        ({"topic": "t", "transforms": "a", "transforms.a.type": "Filter", "transforms.a.predicate": "p"},
         "transforms.a.predicate", "no such predicate"),
        ({"topic": "t", "exactly.once.support": "required"}, "exactly.once.support", "is required"),
        ({"topic": "t", "trigger": "sometimes"}, "trigger", "processing-time, available-now"),
        ({"topic": "t", "trigger.interval": "soon"}, "trigger.interval", "500ms"),
    ],
)  # fmt: skip
def test_source_errors_are_reported_by_option(originals: dict[str, str], name: str, message: str) -> None:
    config = {"name": "n", "connector.class": "x.Lines", **originals}
    errors = check_connector(Lines, config, WORKER, exactly_once=False)[1]
    assert list(errors) == [name]
    assert message in errors[name][0]


def test_sink_errors_are_reported_by_option() -> None:
    def errors(**settings: str) -> dict[str, list[str]]:
        originals = {name.replace("_", "."): value for name, value in settings.items()}
        return check_connector(NullSink, {"name": "n", "connector.class": "x.NullSink", **originals}, WORKER, False)[1]

    assert errors(topics="a") == {}
    assert set(errors()) == {"topics", "topics.regex"}
    assert set(errors(topics="a", topics_regex="b.*")) == {"topics", "topics.regex"}
    assert set(errors(topics_regex="(")) == {"topics.regex"}
    assert "DLQ topic" in errors(topics="a,b", errors_deadletterqueue_topic_name="b")["topics"][0]
    assert set(errors(topics="a", exactly_once="true")) == {"exactly.once"}


def test_connectors_are_found_by_java_short_and_custom_names() -> None:
    java = "org.apache.kafka.connect.file.FileStreamSourceConnector"
    declared = Declared(frozenset({__name__, "json"}), file_connectors=True)
    classes = {plugins.load(name, declared) for name in (java, "FileStreamSource", "FileStreamSourceConnector")}
    assert len(classes) == 1
    assert plugins.load(f"{__name__}.Lines", declared) is Lines
    for name in ("NoSuch", "no.Such", "json.dumps", "json.JSONDecoder", "kavka.connect.Option", ""):
        with pytest.raises(ConfigErrors):
            plugins.load(name, declared)


def test_durations_are_parsed_with_their_units() -> None:
    assert [seconds(text) for text in ("500ms", "10s", "2m", "1h", "250")] == [0.5, 10, 120, 3600, 0.25]
