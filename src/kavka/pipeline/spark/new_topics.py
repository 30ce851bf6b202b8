"""Creates topics before the sink sends the first record to them (option `newTopics`).

The option has rules as JSON: `[{"include": "orders-.*", "exclude": "", "partitions": 3, "replicas":
-1, "configs": {}}]`. The first rule that matches the whole name of a missing topic applies. -1 is
the broker's default. The sink does not create a topic that no rule matches.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field

import pyarrow as pa
import pyarrow.compute as pc

from kavka.client.admin import Admin
from kavka.client.admin.base import AdminError
from kavka.client.admin.types import NewTopic
from kavka.common.errors import ErrorCode, KafkaError
from kavka.pipeline.spark.cluster import admin_settings
from kavka.pipeline.spark.errors import OptionError, PipelineError
from kavka.pipeline.spark.options import SinkOptions
from kavka.pipeline.spark.rows import Layout

_ADVICE = "Ensure that the task is authorized to create topics or that the topic exists and restart the task"


@dataclass(frozen=True)
class Rule:
    """The partitions, replicas and settings of topics that match a pattern."""

    include: str = ".*"
    exclude: str = ""
    partitions: int = -1
    replicas: int = -1
    configs: Mapping[str, str] = field(default_factory=dict)

    def matches(self, topic: str) -> bool:
        return re.fullmatch(self.include, topic) is not None and re.fullmatch(self.exclude, topic) is None

    def topic(self, name: str) -> NewTopic:
        partitions, replicas = (None if number < 0 else number for number in (self.partitions, self.replicas))
        return NewTopic(name, partitions, replicas, configs=self.configs)


def to_json(rules: Iterable[Rule]) -> str:
    return json.dumps([asdict(rule) for rule in rules])


def from_json(text: str) -> tuple[Rule, ...]:
    try:
        return tuple(Rule(**rule) for rule in json.loads(text))
    except (ValueError, TypeError):
        raise OptionError(f"newTopics must be rules as JSON, not '{text}'") from None


def create_topics(client: Mapping[str, str], rules: Iterable[Rule], topics: Iterable[str]) -> None:
    """Create the missing topics that a rule matches. Raises PipelineError if a topic cannot be
    created."""
    matching = {name: rule for name in topics if (rule := _first_match(rules, name)) is not None}
    if not matching:
        return
    with Admin(admin_settings(client)) as admin:
        for name in _missing(admin, list(matching)):
            try:
                admin.create_topics([matching[name].topic(name)])
            except KafkaError as error:
                # Another task may have created the topic.
                if _code(error, name) != ErrorCode.TOPIC_ALREADY_EXISTS:
                    raise PipelineError(f"Task failed to create new topic {name}: {error}. {_ADVICE}") from None


def _first_match(rules: Iterable[Rule], topic: str) -> Rule | None:
    return next((rule for rule in rules if rule.matches(topic)), None)


def _missing(admin: Admin, topics: list[str]) -> list[str]:
    try:
        admin.describe_topics(topics)
    except AdminError as error:
        failures = {
            name: cause for name, cause in error.errors.items() if cause.code != ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        }
        # A principal that may not describe topics may still be allowed to write or create them.
        if any(cause.code != ErrorCode.TOPIC_AUTHORIZATION_FAILED for cause in failures.values()):
            raise PipelineError(f"cannot check whether the topics exist: {error}") from None
        return [name for name in topics if name in error.errors]
    return []


def _code(error: KafkaError, name: str) -> ErrorCode | None:
    failure = error.errors.get(name) if isinstance(error, AdminError) else error
    return None if failure is None else failure.code


# The topics that this process has checked, as (process id, bootstrap servers, name).
_checked: set[tuple[int, str, str]] = set()


def creating_topics(
    options: SinkOptions, layout: Layout, batches: Iterable[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """Yield the batches. The topics of a batch are created before it is yielded."""
    if options.new_topics is None or layout.topic_name is not None:
        yield from batches
        return
    rules = from_json(options.new_topics)
    servers = options.client.get("bootstrap.servers", "")
    for batch in batches:
        names = [name for name in pc.unique(batch.column(layout.topic)).to_pylist() if name is not None]
        unchecked = [name for name in names if (os.getpid(), servers, name) not in _checked]
        create_topics(options.client, rules, unchecked)
        _checked.update((os.getpid(), servers, name) for name in unchecked)
        yield batch
