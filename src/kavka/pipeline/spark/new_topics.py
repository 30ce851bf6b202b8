"""Topics that the sink creates before it sends the first record to them: the option `newTopics`.

Rules as JSON, `[{"include": "orders-.*", "exclude": "", "partitions": 3, "replicas": -1, "configs":
{}}]`: a missing topic is created with the first rule that matches its whole name; -1 is the
broker's default. A topic that no rule matches is left to the broker.
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
    """Creates missing topics. Raises PipelineError if one cannot be created."""
    chosen = {name: rule for name in topics for rule in (_first(rules, name),) if rule is not None}
    if not chosen:
        return
    with Admin(admin_settings(client)) as admin:
        for name in _missing(admin, list(chosen)):
            try:
                admin.create_topics([chosen[name].topic(name)])
            except KafkaError as error:
                # Another task may have created it.
                if _code(error, name) != ErrorCode.TOPIC_ALREADY_EXISTS:
                    raise PipelineError(f"Task failed to create new topic {name}: {error}. {_ADVICE}") from None


def _first(rules: Iterable[Rule], topic: str) -> Rule | None:
    return next((rule for rule in rules if rule.matches(topic)), None)


def _missing(admin: Admin, topics: list[str]) -> list[str]:
    try:
        admin.describe_topics(topics)
    except AdminError as error:
        failures = {
            name: cause for name, cause in error.errors.items() if cause.code != ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        }
        if failures:
            # A principal that may not describe topics may still be allowed to write or create them.
            denied = all(cause.code == ErrorCode.TOPIC_AUTHORIZATION_FAILED for cause in failures.values())
            if not denied:
                raise PipelineError(f"cannot check whether the topics exist: {error}") from None
        return [name for name in topics if name in error.errors]
    return []


def _code(error: KafkaError, name: str) -> ErrorCode | None:
    failure = error.errors.get(name) if isinstance(error, AdminError) else error
    return None if failure is None else failure.code


# The topics that this process has checked: process id, cluster and name.
_checked: set[tuple[int, str, str]] = set()


def creating_topics(
    options: SinkOptions, layout: Layout, batches: Iterable[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """The same batches. The topics of the rows of a batch exist when it is yielded."""
    if options.new_topics is None or layout.topic_name is not None:
        yield from batches
        return
    rules = from_json(options.new_topics)
    servers = options.client.get("bootstrap.servers", "")
    for batch in batches:
        named = [name for name in pc.unique(batch.column(layout.topic)).to_pylist() if name is not None]
        new = [name for name in named if (os.getpid(), servers, name) not in _checked]
        create_topics(options.client, rules, new)
        _checked.update((os.getpid(), servers, name) for name in new)
        yield batch
