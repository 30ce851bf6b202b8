"""Transformations that change a record's topic or drop the record: TimestampRouter, RegexRouter,
Filter."""

from __future__ import annotations

import re
from dataclasses import replace

from pyspark.sql import functions as F

from kavka.common.config import Importance
from kavka.pipeline.connect.options import Option
from kavka.pipeline.connect.records import Records
from kavka.pipeline.connect.transforms.base import Transform

HIGH = Importance.HIGH


class TimestampRouter(Transform):
    """Builds the topic from the current topic and the record's timestamp."""

    options = (
        Option("topic.format", default="${topic}-${timestamp}", importance=HIGH,
               doc="The new topic, with the placeholders `${topic}` and `${timestamp}`."),
        Option("timestamp.format", default="yyyyMMdd", importance=HIGH,
               doc="The format of the timestamp, a pattern of Java's SimpleDateFormat, in UTC."),
    )  # fmt: skip

    def apply(self, records: Records) -> Records:
        topic, timestamp = F.col("topic"), F.date_format("timestamp", self.config["timestamp.format"])
        columns = {"${topic}": topic, "${timestamp}": timestamp}
        parts = re.split(r"(\$\{topic\}|\$\{timestamp\})", self.config["topic.format"])
        new_topic = F.concat(*(columns.get(part, F.lit(part)) for part in parts if part))
        records = self.fail(records, F.col("timestamp").isNull(), "Timestamp missing on record")
        return records.with_columns({"topic": F.coalesce(new_topic, topic)})


class RegexRouter(Transform):
    """Rewrites the topic with a regular expression."""

    options = (
        Option("regex", doc="A Java regular expression that matches the whole topic.", importance=HIGH),
        Option("replacement", doc="The replacement; `$1` is the first group.", importance=HIGH),
    )

    def apply(self, records: Records) -> Records:
        pattern = f"^(?:{self.config['regex']})$"
        topic = F.col("topic")
        new_topic = F.regexp_replace(topic, pattern, self.config["replacement"])
        return records.with_columns({"topic": F.when(topic.rlike(pattern), new_topic).otherwise(topic)})


class Filter(Transform):
    """Drops all records, or those that match the predicate."""

    def apply(self, records: Records) -> Records:
        return replace(records, frame=records.frame.filter(F.lit(False)))
