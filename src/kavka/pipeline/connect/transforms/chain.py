"""The transformations of a connector, in their order, each for the records that its predicate is for."""

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
        kept = F.struct(*(F.col(name) for name in (*PARTS, ERROR)))
        changed = self.transform.apply(records.with_columns({_OLD: kept, _HOLDS: holds}))
        columns = {}
        for name in (*PARTS, ERROR):
            new, old = changed.type_of(name), records.type_of(name)
            try:
                kind = schemas.merged(new, old) if new != old else new
            except ConnectError:
                raise ConnectError(
                    f"transformation {self.alias} makes {name} a {new.simpleString()} for those records that its "
                    f"predicate is for, and it is a {old.simpleString()} for the others: a column has one type"
                ) from None
            one, two = F.col(name), F.col(_OLD).getField(name)
            columns[name] = F.when(F.col(_HOLDS), _fitted(one, new, kind)).otherwise(_fitted(two, old, kind))
        found = changed.with_columns(columns)
        return replace(found, frame=found.frame.drop(_OLD, _HOLDS))


def _fitted(column: Any, kind: Any, wanted: Any) -> Any:
    """As the wider struct, with null where a field is not there."""
    if not isinstance(wanted, StructType) or kind == wanted:
        return column.cast(wanted)
    fields = []
    for one in wanted.fields:
        if one.name in kind.names:
            fields.append(_fitted(column.getField(one.name), kind[one.name].dataType, one.dataType).alias(one.name))
        else:
            fields.append(F.lit(None).cast(one.dataType).alias(one.name))
    return F.when(column.isNotNull(), F.struct(*fields))


def apply(steps: list[Step], records: Records) -> Records:
    for step in steps:
        records = step.apply(records)
    return records


def names(given: Mapping[str, str], option: str) -> list[str]:
    return [one.strip() for one in given.get(option, "").split(",") if one.strip()]


def compiled(given: Mapping[str, str], declared: Declared = NOTHING) -> tuple[list[Step], dict[str, list[str]]]:
    """(the steps, errors by option) of `transforms` and `predicates`."""
    errors: dict[str, list[str]] = {}
    predicates: dict[str, Predicate] = {}
    for option in ("transforms", "predicates"):
        aliases = names(given, option)
        if len(set(aliases)) < len(aliases):
            errors[option] = [f"Invalid value {given[option]} for configuration {option}: Duplicate alias provided."]
    for alias in dict.fromkeys(names(given, "predicates")):
        found = _loaded(given, f"predicates.{alias}.", PREDICATES, "predicate", errors, declared)
        if found is not None:
            predicates[alias] = found[0](found[1])
    steps = []
    for alias in dict.fromkeys(names(given, "transforms")):
        prefix = f"transforms.{alias}."
        found = _loaded(given, prefix, TRANSFORMS, "transformation", errors, declared)
        if found is None:
            continue
        cls, config, side = found
        wanted = given.get(f"{prefix}predicate")
        if wanted and wanted not in predicates and f"predicates.{wanted}.type" not in errors:
            message = f"Invalid value {wanted} for configuration {prefix}predicate: there is no such predicate"
            errors[f"{prefix}predicate"] = [message]
            continue
        negate = given.get(f"{prefix}negate", "false").strip().lower() == "true"
        steps.append(Step(alias, cls(config, side), predicates.get(wanted or ""), negate))
    return steps, errors


def options_of_steps(given: Mapping[str, str], declared: Declared = NOTHING) -> list[Option]:
    """The rows of `transforms.NAME.…` and `predicates.NAME.…`, for validate: of those whose class is known."""
    found: list[Option] = []
    kinds = (
        ("transforms", "Transforms", TRANSFORMS, "transformation"),
        ("predicates", "Predicates", PREDICATES, "predicate"),
    )
    for plural, title, known, what in kinds:
        for alias in dict.fromkeys(names(given, plural)):
            prefix, group = f"{plural}.{alias}.", f"{title}: {alias}"
            kind = f"Which {plural.removesuffix('s')} it is."
            rows = [Option("type", ConfigType.CLASS, doc=kind, importance=Importance.HIGH, width="LONG")]
            if plural == "transforms":
                rows += [
                    Option("negate", ConfigType.BOOLEAN, False, "For records that the predicate is not for."),
                    Option("predicate", default=None, doc="The predicate of the records that it is for."),
                ]
            with contextlib.suppress(ConfigErrors):
                rows += load("", given.get(f"{prefix}type", "").strip(), known, what, declared)[0].options
            found += [
                replace(one, name=f"{prefix}{one.name}", group=group, display_name=one.display_name or one.name)
                for one in rows
            ]
    return found


def _loaded(
    given: Mapping[str, str],
    prefix: str,
    known: Mapping[str, str],
    what: str,
    errors: dict[str, list[str]],
    declared: Declared,
) -> tuple[Any, dict[str, Any], str] | None:
    option = f"{prefix}type"
    name = given.get(option)
    if not name:
        errors[option] = [f'Missing required configuration "{option}" which has no default value.']
        return None
    try:
        cls, side = load(option, name.strip(), known, what, declared)
    except ConfigErrors as error:
        errors.update(error.errors)
        return None
    if getattr(cls, "sided", False) != (side in ("Key", "Value")) and cls.__module__.startswith("kavka."):
        wanted = "with $Key or $Value at its end" if cls.sided else "without a $"
        errors[option] = [f"Invalid value {name} for configuration {option}: it is named {wanted}"]
        return None
    config, wrong = options_under(cls, prefix, given)
    if wrong:
        errors.update(wrong)
        return None
    return cls, config, side
