"""Transformations of where a record goes: TimestampRouter, RegexRouter, Filter."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from pyspark.sql import functions as F

from kavka.common.config import Importance
from kavka.pipeline.connect.options import Option
from kavka.pipeline.connect.records import Records
from kavka.pipeline.connect.transforms.base import Transform

HIGH = Importance.HIGH


class TimestampRouter(Transform):
    """Makes the topic of the old topic and the record's time."""

    options = (
        Option("topic.format", default="${topic}-${timestamp}", importance=HIGH,
               doc="The new topic: `${topic}` and `${timestamp}` stand for the two."),
        Option("timestamp.format", default="yyyyMMdd", importance=HIGH,
               doc="How the time is written, as Java's SimpleDateFormat has it; in UTC."),
    )  # fmt: skip

    def apply(self, records: Records) -> Records:
        topic, stamp = F.col("topic"), F.date_format("timestamp", self.config["timestamp.format"])
        known = {"${topic}": topic, "${timestamp}": stamp}
        parts = re.split(r"(\$\{topic\}|\$\{timestamp\})", self.config["topic.format"])
        made = F.concat(*(known.get(part, F.lit(part)) for part in parts if part))
        records = self.fail(records, F.col("timestamp").isNull(), "Timestamp missing on record")
        return records.with_columns({"topic": F.coalesce(made, topic)})


class RegexRouter(Transform):
    """Makes the topic of the old topic by a regular expression."""

    options = (
        Option("regex", doc="A regular expression of Java that matches the whole topic.", importance=HIGH),
        Option("replacement", doc="What is put in its place; `$1` is the first group.", importance=HIGH),
    )

    def apply(self, records: Records) -> Records:
        whole = f"^(?:{self.config['regex']})$"
        topic = F.col("topic")
        made = F.regexp_replace(topic, whole, self.config["replacement"])
        return records.with_columns({"topic": F.when(topic.rlike(whole), made).otherwise(topic)})


class Filter(Transform):
    """Leaves the record out; with a predicate, only those for which it holds."""

    @classmethod
    def check(cls, config: Mapping[str, Any]) -> dict[str, str]:
        return {}

    def apply(self, records: Records) -> Records:
        return replace(records, frame=records.frame.filter(F.lit(False)))
