"""Topics that the sink makes before the first record goes there: the option `newTopics`.

Rules as JSON, `[{"include": "orders-.*", "exclude": "", "partitions": 3, "replicas": -1, "configs": {}}]`: a topic that
is not there is made as the first rule says that matches its whole name; -1 is the broker's default. One that no rule
matches is left to the broker.
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
        return tuple(Rule(**one) for one in json.loads(text))
    except (ValueError, TypeError):
        raise OptionError(f"newTopics must be rules as JSON, not '{text}'") from None


def make(client: Mapping[str, str], rules: Iterable[Rule], topics: Iterable[str]) -> None:
    """Make those that are not there. PipelineError where one cannot be made."""
    chosen = {name: rule for name in topics for rule in (_first(rules, name),) if rule is not None}
    if not chosen:
        return
    with Admin(admin_settings(client)) as admin:
        for name in _missing(admin, list(chosen)):
            try:
                admin.create_topics([chosen[name].topic(name)])
            except KafkaError as error:
                # Another task may have been faster.
                if _code(error, name) != ErrorCode.TOPIC_ALREADY_EXISTS:
                    raise PipelineError(f"Task failed to create new topic {name}: {error}. {_ADVICE}") from None


def _first(rules: Iterable[Rule], topic: str) -> Rule | None:
    return next((rule for rule in rules if rule.matches(topic)), None)


def _missing(admin: Admin, topics: list[str]) -> list[str]:
    try:
        admin.describe_topics(topics)
    except AdminError as error:
        wrong = {name: why for name, why in error.errors.items() if why.code != ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}
        if wrong:
            # Who may not look at topics may still be allowed to write to them, or to make them.
            denied = all(why.code == ErrorCode.TOPIC_AUTHORIZATION_FAILED for why in wrong.values())
            if not denied:
                raise PipelineError(f"whether the topics are there cannot be told: {error}") from None
        return [name for name in topics if name in error.errors]
    return []


def _code(error: KafkaError, name: str) -> ErrorCode | None:
    found = error.errors.get(name) if isinstance(error, AdminError) else error
    return None if found is None else found.code


# By process: topics that were looked for, and the process and cluster they are of.
_known: set[tuple[int, str, str]] = set()


def before(options: SinkOptions, where: Layout, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The same batches; when one comes out, the topics of its rows are there."""
    if options.new_topics is None or where.topic_name is not None:
        yield from batches
        return
    rules = from_json(options.new_topics)
    servers = options.client.get("bootstrap.servers", "")
    for batch in batches:
        named = [name for name in pc.unique(batch.column(where.topic)).to_pylist() if name is not None]
        new = [name for name in named if (os.getpid(), servers, name) not in _known]
        make(options.client, rules, new)
        _known.update((os.getpid(), servers, name) for name in new)
        yield batch
