"""Predicates, which select the records that a transformation applies to. A custom predicate is a
subclass of `Predicate`, named by `module.Class`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from pyspark.sql import Column
from pyspark.sql import functions as F

from kavka.common.config import Importance, NotEmpty
from kavka.pipeline.connect.options import Option
from kavka.pipeline.connect.records import VALUE, Records

HIGH = Importance.HIGH


class Predicate:
    """The base class of predicates."""

    options: ClassVar[tuple[Option, ...]] = ()

    def __init__(self, config: Mapping[str, Any]) -> None:
        self.config = config

    @classmethod
    def check(cls, config: Mapping[str, Any]) -> dict[str, str]:
        return {}

    def holds(self, records: Records) -> Column:
        """Returns a column that is true for the records for which the predicate holds, and never
        null."""
        raise NotImplementedError


class TopicNameMatches(Predicate):
    """The topic's whole name matches a Java regular expression."""

    options = (Option("pattern", doc="The regular expression.", importance=HIGH, validator=NotEmpty()),)

    def holds(self, records: Records) -> Column:
        return F.coalesce(F.col("topic").rlike(f"^(?:{self.config['pattern']})$"), F.lit(False))


class HasHeaderKey(Predicate):
    """The record has a header with the name `name`."""

    options = (Option("name", doc="The name of the header.", importance=HIGH, validator=NotEmpty()),)

    def holds(self, records: Records) -> Column:
        name = self.config["name"]
        return F.coalesce(F.exists("headers", lambda header: header["key"] == name), F.lit(False))


class RecordIsTombstone(Predicate):
    """The value is null."""

    def holds(self, records: Records) -> Column:
        return F.col(VALUE).isNull()
