"""The transformations of a connector, in their order, each with its optional predicate."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from kavka.common.config import ConfigType, Importance
from kavka.pipeline.columns.errors import ColumnError
from kavka.pipeline.columns.types import merge_types
from kavka.pipeline.connect.errors import ConfigErrors, ConnectError
from kavka.pipeline.connect.loading import NO_PLUGINS, PREDICATES, TRANSFORMS, Declared, load, options_under
from kavka.pipeline.connect.options import Option
from kavka.pipeline.connect.records import ERROR, RECORD_COLUMNS, Records
from kavka.pipeline.connect.transforms.base import Transform
from kavka.pipeline.connect.transforms.predicates import Predicate
from kavka.pipeline.connect.transforms.routing import Filter

_ORIGINAL, _HOLDS = "_original", "_holds"


@dataclass(frozen=True)
class Step:
    """A transformation and its optional predicate."""

    alias: str
    transform: Transform
    predicate: Predicate | None = None
    negate: bool = False

    def apply(self, records: Records) -> Records:
        if self.predicate is None:
            return self.transform.apply(records)
        holds = self.predicate.holds(records)
        if self.negate:
            holds = ~holds
        if isinstance(self.transform, Filter):
            return replace(records, frame=records.frame.filter(~holds))
        names = (*RECORD_COLUMNS, ERROR)
        changed = self.transform.apply(records.with_columns({_ORIGINAL: F.struct(*names), _HOLDS: holds}))
        columns = {}
        for name in names:
            old_type, new_type = records.type_of(name), changed.type_of(name)
            try:
                kind = merge_types(new_type, old_type)
            except ColumnError:
                raise ConnectError(
                    f"transformation {self.alias} changes {name} to {new_type.simpleString()} for the records that "
                    f"match its predicate, but it is {old_type.simpleString()} for the other records: a column has "
                    "one type"
                ) from None
            old_column = _fitted(F.col(_ORIGINAL).getField(name), old_type, kind)
            columns[name] = F.when(F.col(_HOLDS), _fitted(F.col(name), new_type, kind)).otherwise(old_column)
        result = changed.with_columns(columns)
        return replace(result, frame=result.frame.drop(_ORIGINAL, _HOLDS))


def _fitted(column: Any, kind: Any, target: Any) -> Any:
    """Returns the column, cast to the merged type. Missing fields of structs are null."""
    if not isinstance(target, StructType) or kind == target:
        return column.cast(target)
    fields = []
    for field in target.fields:
        if field.name in kind.names:
            fields.append(
                _fitted(column.getField(field.name), kind[field.name].dataType, field.dataType).alias(field.name)
            )
        else:
            fields.append(F.lit(None).cast(field.dataType).alias(field.name))
    return F.when(column.isNotNull(), F.struct(*fields))


def apply(steps: list[Step], records: Records) -> Records:
    for step in steps:
        records = step.apply(records)
    return records


def _aliases(originals: Mapping[str, str], option: str) -> list[str]:
    return [alias.strip() for alias in originals.get(option, "").split(",") if alias.strip()]


def compile_steps(
    originals: Mapping[str, str], declared: Declared = NO_PLUGINS
) -> tuple[list[Step], dict[str, list[str]]]:
    """Returns (the steps, errors by option) of `transforms` and `predicates`."""
    errors: dict[str, list[str]] = {}
    predicates: dict[str, Predicate] = {}
    for option in ("transforms", "predicates"):
        aliases = _aliases(originals, option)
        if len(set(aliases)) < len(aliases):
            errors[option] = [
                f"Invalid value {originals[option]} for configuration {option}: Duplicate alias provided."
            ]
    for alias in dict.fromkeys(_aliases(originals, "predicates")):
        loaded = _loaded(originals, f"predicates.{alias}.", PREDICATES, "predicate", errors, declared)
        if loaded is not None:
            predicates[alias] = loaded[0](loaded[1])
    steps = []
    for alias in dict.fromkeys(_aliases(originals, "transforms")):
        prefix = f"transforms.{alias}."
        loaded = _loaded(originals, prefix, TRANSFORMS, "transformation", errors, declared)
        if loaded is None:
            continue
        cls, config, side = loaded
        predicate = originals.get(f"{prefix}predicate")
        if predicate and predicate not in predicates and f"predicates.{predicate}.type" not in errors:
            message = f"Invalid value {predicate} for configuration {prefix}predicate: there is no such predicate"
            errors[f"{prefix}predicate"] = [message]
            continue
        negate = originals.get(f"{prefix}negate", "false").strip().lower() == "true"
        steps.append(Step(alias, cls(config, side), predicates.get(predicate or ""), negate))
    return steps, errors


def options_of_steps(originals: Mapping[str, str], declared: Declared = NO_PLUGINS) -> list[Option]:
    """Returns the options `transforms.NAME.…` and `predicates.NAME.…`, for `config/validate`. A
    class that cannot be loaded has only the common options."""
    options: list[Option] = []
    kinds = (
        ("transforms", "Transforms", TRANSFORMS, "transformation"),
        ("predicates", "Predicates", PREDICATES, "predicate"),
    )
    for plural, title, classes, noun in kinds:
        for alias in dict.fromkeys(_aliases(originals, plural)):
            prefix, group = f"{plural}.{alias}.", f"{title}: {alias}"
            doc = f"The class of the {noun}."
            rows = [Option("type", ConfigType.CLASS, doc=doc, importance=Importance.HIGH, width="LONG")]
            if plural == "transforms":
                rows += [
                    Option("negate", ConfigType.BOOLEAN, False, "Apply to records that do not match the predicate."),
                    Option("predicate", default=None, doc="The predicate that selects the records."),
                ]
            with contextlib.suppress(ConfigErrors):
                rows += load("", originals.get(f"{prefix}type", "").strip(), classes, noun, declared)[0].options
            options += [
                replace(row, name=f"{prefix}{row.name}", group=group, display_name=row.display_name or row.name)
                for row in rows
            ]
    return options


def _loaded(
    originals: Mapping[str, str],
    prefix: str,
    classes: Mapping[str, str],
    noun: str,
    errors: dict[str, list[str]],
    declared: Declared,
) -> tuple[Any, dict[str, Any], str] | None:
    option = f"{prefix}type"
    name = originals.get(option)
    if not name:
        errors[option] = [f'Missing required configuration "{option}" which has no default value.']
        return None
    try:
        cls, side = load(option, name.strip(), classes, noun, declared)
    except ConfigErrors as error:
        errors.update(error.errors)
        return None
    if getattr(cls, "sided", False) != (side in ("Key", "Value")) and cls.__module__.startswith("kavka."):
        form = "with $Key or $Value at its end" if cls.sided else "without a $"
        errors[option] = [f"Invalid value {name} for configuration {option}: it is named {form}"]
        return None
    config, option_errors = options_under(cls, prefix, originals)
    if option_errors:
        errors.update(option_errors)
        return None
    return cls, config, side
