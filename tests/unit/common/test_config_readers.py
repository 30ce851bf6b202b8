"""Every setting in a table has a reader in the source, or the table says that it has no effect.

A reader is the setting's name, or its attribute (`settings.num_io_threads`), outside of the row
that declares it. A setting without either is accepted and silently ignored.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator
from dataclasses import fields
from functools import cache
from pathlib import Path

import pytest

import kavka
from kavka.client.admin_config import ADMIN_CONFIGS
from kavka.client.consumer_config import CONSUMER_CONFIGS
from kavka.client.producer_config import PRODUCER_CONFIGS
from kavka.common.broker_config import BROKER_CONFIGS
from kavka.common.config import ConfigKey, ConfigTable, OneOf
from kavka.common.group_config import SINGLE_GROUP_CONFIGS
from kavka.common.topic_config import TOPIC_CONFIGS
from kavka.pipeline.connect import settings as connect_settings
from kavka.pipeline.connect.options import NO_EFFECT, Option
from kavka.pipeline.mirror import settings as mirror_settings
from kavka.pipeline.mirror.flow import Flow
from kavka.pipeline.spark import options as spark_options
from kavka.pipeline.streams import settings as streams_settings

SOURCE = Path(kavka.__file__).parent
BROKER_LAYERS = ("api", "broker", "controller", "coordinator", "network", "replication", "security", "storage")
# Rules between settings mention a setting without applying it.
TABLE_MODULES = re.compile(r"(broker_config|topic_config|producer_config|consumer_config|admin_config).*\.py")


class Readers:
    """The strings and attributes that some source files read."""

    def __init__(self, files: Iterable[Path]) -> None:
        self.strings: set[str] = set()
        self.attributes: set[str] = set()
        self.patterns: set[str] = set()
        for file in files:
            self._collect(ast.parse(file.read_text()))

    def _collect(self, tree: ast.AST) -> None:
        for node in _nodes_outside_rows(tree):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                self.strings.add(node.value)
            elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load):
                self.attributes.add(node.attr)
            elif isinstance(node, ast.JoinedStr):
                parts = [
                    re.escape(str(part.value)) if isinstance(part, ast.Constant) else r"[\w.-]+" for part in node.values
                ]
                # f"{group}.{name}" would match everything.
                if sum(len(part.value) for part in node.values if isinstance(part, ast.Constant)) >= 10:
                    self.patterns.add("".join(parts))

    def read(self, name: str, attribute: str | None = None) -> bool:
        return (
            name in self.strings
            or attribute in self.attributes
            or any(text.endswith(".") and name.startswith(text) for text in self.strings if len(text) > 10)
            or any(re.fullmatch(pattern, name) for pattern in self.patterns)
        )


def _nodes_outside_rows(node: ast.AST) -> Iterator[ast.AST]:
    """All nodes but the rows of tables: `K(…)` and `Option(…)`."""
    yield node
    for child in ast.iter_child_nodes(node):
        is_row = isinstance(child, ast.Call) and isinstance(child.func, ast.Name) and child.func.id in ("K", "Option")
        if not is_row:
            yield from _nodes_outside_rows(child)


@cache
def readers_in(*folders: str) -> Readers:
    files = [file for folder in folders for file in sorted((SOURCE / folder).rglob("*.py"))]
    return Readers(file for file in files if not TABLE_MODULES.fullmatch(file.name))


def client_readers(folder: str) -> Readers:
    """A client's own folder, and the modules that all clients share."""
    files = [*sorted((SOURCE / "client").glob("*.py")), *sorted((SOURCE / "security").rglob("*.py"))]
    shared = [file for file in files if not TABLE_MODULES.fullmatch(file.name)]
    return Readers([*shared, *sorted((SOURCE / "client" / folder).rglob("*.py"))])


def unread(table: Iterable[ConfigKey], readers: Readers) -> list[str]:
    return [
        key.name
        for key in table
        if key.warning is None and not _has_single_value(key) and not readers.read(key.name, key.attribute)
    ]


def _has_single_value(key: ConfigKey) -> bool:
    """Parsing such a setting is all that can be done with it."""
    return isinstance(key.validator, OneOf) and len(key.validator.values) == 1


def test_broker_topic_and_group_settings_are_read_or_marked() -> None:
    readers = readers_in(*BROKER_LAYERS, "common")
    synonyms = {
        synonym.name
        for table in (BROKER_CONFIGS, TOPIC_CONFIGS, SINGLE_GROUP_CONFIGS)
        for key in table
        for synonym in key.synonyms
    }
    assert [name for name in unread(BROKER_CONFIGS, readers) if name not in synonyms] == []
    assert unread(TOPIC_CONFIGS, readers) == []
    assert unread(SINGLE_GROUP_CONFIGS, readers) == []


@pytest.mark.parametrize(
    ("table", "folder"),
    [(PRODUCER_CONFIGS, "producer"), (CONSUMER_CONFIGS, "consumer"), (ADMIN_CONFIGS, "admin")],
    ids=["producer", "consumer", "admin"],
)
def test_client_settings_are_read_or_marked(table: ConfigTable, folder: str) -> None:
    assert unread(table, client_readers(folder)) == []


def test_connect_settings_are_read_or_marked() -> None:
    readers = readers_in("pipeline/connect")
    tables = (
        connect_settings.COMMON,
        connect_settings.SOURCE_OPTIONS,
        connect_settings.SINK_OPTIONS,
        connect_settings.STANDALONE,
        connect_settings.DISTRIBUTED,
    )
    options: list[Option] = [option for table in tables for option in table]
    assert [
        option.name for option in options if not option.doc.startswith(NO_EFFECT) and not readers.read(option.name)
    ] == []


def test_mirror_settings_are_read() -> None:
    attributes = readers_in("pipeline/mirror").attributes
    fields_set = {field for field, _ in mirror_settings._SETTINGS.values()}
    assert fields_set <= {field.name for field in fields(Flow)}
    assert fields_set <= attributes


@pytest.mark.parametrize(
    ("parsed", "folder"),
    [
        (spark_options.SourceOptions, "pipeline/spark"),
        (spark_options.SinkOptions, "pipeline/spark"),
        (streams_settings.Settings, "pipeline/streams"),
    ],
)
def test_parsed_settings_of_spark_and_streams_are_read(parsed: type, folder: str) -> None:
    assert {field.name for field in fields(parsed)} <= readers_in(folder).attributes


def test_options_of_spark_are_read_by_name() -> None:
    tree = ast.parse((SOURCE / "pipeline/spark/options.py").read_text())
    tables = [node for node in tree.body if isinstance(node, ast.Assign) and ast.unparse(node).find("_NAMES") > 0]
    tree.body = [node for node in tree.body if node not in tables]
    texts = {node.value for node in ast.walk(tree) if isinstance(node, ast.Constant) and isinstance(node.value, str)}
    names = (*spark_options.SOURCE_NAMES, *spark_options.SINK_NAMES)
    # The ends of f"{side}Subject" and similar names are constants.
    ends = tuple(text for text in texts if text.isalpha() and text[0].isupper() and len(text) >= 6)
    assert len(tables) >= 2
    assert [name for name in names if name not in texts and not name.endswith(ends)] == []


def test_a_setting_without_reader_and_mark_is_detected() -> None:
    ignored = ConfigKey("socket.nagle.enable", BROKER_CONFIGS["delete.topic.enable"].type, False, "")
    assert unread([ignored], readers_in(*BROKER_LAYERS, "common")) == ["socket.nagle.enable"]
