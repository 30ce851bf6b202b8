"""`topic.creation.…` of sources: what topics are like that have to be made.

`topic.creation.groups` names groups, each with `topic.creation.NAME.include` and `exclude`, lists of regular
expressions; a topic is made as the first group says that it belongs to, else as `topic.creation.default.…`. What else
is under a group's name is a setting of the topic. Any of these settings asks for topics to be made, and then the
default's partitions and replicas have to be given, as Kafka Connect has it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from kavka.common.config import ConfigType, Satisfies
from kavka.pipeline.connect.options import REQUIRED, Option, parse
from kavka.pipeline.spark.new_topics import Rule

PREFIX = "topic.creation."
ENABLE = "topic.creation.enable"
DEFAULT = "default"

_COUNT = Satisfies("positive, or -1 to use the broker's default", lambda number: number == -1 or number > 0)
_OWN = ("include", "exclude", "partitions", "replication.factor")


def _options(group: str, partitions: object, replicas: object) -> tuple[Option, ...]:
    under = f"{PREFIX}{group}."
    return (
        Option(f"{under}partitions", ConfigType.INT, partitions, validator=_COUNT),
        Option(f"{under}replication.factor", ConfigType.SHORT, replicas, validator=_COUNT),
    )


def _joined(name: str, given: Mapping[str, str], errors: dict[str, list[str]]) -> str:
    text = "|".join(one.strip() for one in given.get(name, "").split(","))
    try:
        re.compile(text)
    except re.error as error:
        wrong = f"Invalid value {given[name]} for configuration {name}: Syntax error in regular expression: {error}"
        errors[name] = [wrong]
    return text


def rules(given: Mapping[str, str], worker: Mapping[str, str]) -> tuple[list[Rule], dict[str, list[str]]]:
    """(the groups in their order and the default, errors by name). None: the broker makes the topics."""
    wanted = any(name.startswith(PREFIX) for name in given)
    if not wanted or worker.get(ENABLE, "true").strip().lower() == "false":
        return [], {}
    names = [one.strip() for one in given.get(f"{PREFIX}groups", "").split(",") if one.strip()]
    errors: dict[str, list[str]] = {}
    if len(set(names)) < len(names):
        shown = ", ".join(names)
        wrong = f"Invalid value [{shown}] for configuration {PREFIX}groups: Duplicate alias provided."
        errors[f"{PREFIX}groups"] = [wrong]
    partitions, replicas = _counts(DEFAULT, REQUIRED, REQUIRED, given, errors)
    found = []
    for name in [one for one in names if one != DEFAULT]:
        count, factor = _counts(name, partitions, replicas, given, errors)
        include, exclude = (_joined(f"{PREFIX}{name}.{what}", given, errors) for what in ("include", "exclude"))
        found.append(Rule(include, exclude, count, factor, _configs(name, given)))
    default = Rule(partitions=partitions, replicas=replicas, configs=_configs(DEFAULT, given))
    return [*found, default], errors


def _counts(
    group: str, partitions: object, replicas: object, given: Mapping[str, str], errors: dict[str, list[str]]
) -> tuple[int, int]:
    values, wrong = parse(_options(group, partitions, replicas), given)
    errors.update(wrong)
    count, factor = (-1 if value is None else int(value) for value in values.values())
    return count, factor


def _configs(group: str, given: Mapping[str, str]) -> dict[str, str]:
    under = f"{PREFIX}{group}."
    found = {name[len(under) :]: value for name, value in given.items() if name.startswith(under)}
    return {name: value for name, value in found.items() if name not in _OWN}
