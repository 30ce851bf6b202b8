"""The transformations of a connector, in their order, each with its optional predicate."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from kavka.common.config import ConfigType, Importance
from kavka.pipeline.connect import schemas
from kavka.pipeline.connect.errors import ConfigErrors, ConnectError
from kavka.pipeline.connect.loading import NOTHING, PREDICATES, TRANSFORMS, Declared, load, options_under
from kavka.pipeline.connect.options import Option
from kavka.pipeline.connect.records import ERROR, PARTS, Records
from kavka.pipeline.connect.transforms.base import Transform
from kavka.pipeline.connect.transforms.predicates import Predicate
from kavka.pipeline.connect.transforms.routing import Filter

_OLD, _HOLDS = "_old", "_holds"


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
        original = F.struct(*(F.col(name) for name in (*PARTS, ERROR)))
        changed = self.transform.apply(records.with_columns({_OLD: original, _HOLDS: holds}))
        columns = {}
        for name in (*PARTS, ERROR):
            new, old = changed.type_of(name), records.type_of(name)
            try:
                kind = schemas.merged(new, old) if new != old else new
            except ConnectError:
                raise ConnectError(
                    f"transformation {self.alias} changes {name} to {new.simpleString()} for the records that match "
                    f"its predicate, but it is {old.simpleString()} for the others: a column has one type"
                ) from None
            column, old_column = F.col(name), F.col(_OLD).getField(name)
            columns[name] = F.when(F.col(_HOLDS), _fitted(column, new, kind)).otherwise(_fitted(old_column, old, kind))
        result = changed.with_columns(columns)
        return replace(result, frame=result.frame.drop(_OLD, _HOLDS))


def _fitted(column: Any, kind: Any, target: Any) -> Any:
    """The column converted to the merged struct type, with null for missing fields."""
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


def names(originals: Mapping[str, str], option: str) -> list[str]:
    return [alias.strip() for alias in originals.get(option, "").split(",") if alias.strip()]


def compiled(originals: Mapping[str, str], declared: Declared = NOTHING) -> tuple[list[Step], dict[str, list[str]]]:
    """(the steps, errors by option) of `transforms` and `predicates`."""
    errors: dict[str, list[str]] = {}
    predicates: dict[str, Predicate] = {}
    for option in ("transforms", "predicates"):
        aliases = names(originals, option)
        if len(set(aliases)) < len(aliases):
            errors[option] = [
                f"Invalid value {originals[option]} for configuration {option}: Duplicate alias provided."
            ]
    for alias in dict.fromkeys(names(originals, "predicates")):
        loaded = _loaded(originals, f"predicates.{alias}.", PREDICATES, "predicate", errors, declared)
        if loaded is not None:
            predicates[alias] = loaded[0](loaded[1])
    steps = []
    for alias in dict.fromkeys(names(originals, "transforms")):
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


def options_of_steps(originals: Mapping[str, str], declared: Declared = NOTHING) -> list[Option]:
    """The options `transforms.NAME.…` and `predicates.NAME.…` of classes that can be loaded, for
    validate."""
    options: list[Option] = []
    kinds = (
        ("transforms", "Transforms", TRANSFORMS, "transformation"),
        ("predicates", "Predicates", PREDICATES, "predicate"),
    )
    for plural, title, classes, noun in kinds:
        for alias in dict.fromkeys(names(originals, plural)):
            prefix, group = f"{plural}.{alias}.", f"{title}: {alias}"
            kind = f"The class of the {plural.removesuffix('s')}."
            rows = [Option("type", ConfigType.CLASS, doc=kind, importance=Importance.HIGH, width="LONG")]
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
