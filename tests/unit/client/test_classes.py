"""Names of classes in settings."""

from __future__ import annotations

import fractions
import json.decoder

import pytest

from kavka.client import classes
from kavka.common.config import ConfigError

JAVA_NAMES = {"StringSerializer": "kavka.client.serializers:StringSerializer"}


@pytest.mark.parametrize(
    ("name", "loaded"),
    [
        ("fractions.Fraction", fractions.Fraction),
        ("fractions:Fraction", fractions.Fraction),
        ("json.decoder:JSONDecoder", json.decoder.JSONDecoder),
    ],
)
def test_python_classes_are_loaded(name, loaded):
    assert classes.load("serializer", name, JAVA_NAMES, "a serializer") is loaded


@pytest.mark.parametrize("name", ["StringSerializer", "org.apache.kafka.common.serialization.StringSerializer"])
def test_java_names_are_loaded(name):
    assert classes.load("serializer", name, JAVA_NAMES, "a serializer").__name__ == "StringSerializer"


@pytest.mark.parametrize("name", ["Missing", "org.apache.kafka.Missing", "fractions:Missing", "missing_module:Class"])
def test_unknown_classes_are_refused(name):
    with pytest.raises(ConfigError, match="serializer"):
        classes.load("serializer", name, JAVA_NAMES, "a serializer")
