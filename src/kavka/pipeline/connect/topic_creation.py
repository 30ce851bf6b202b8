"""`topic.creation.…` of sources: the settings of topics that a source creates.

`topic.creation.groups` names groups. Each has `topic.creation.NAME.include` and `exclude`, lists of
regular expressions. A topic is created with the settings of the first group that it matches,
otherwise with those of `topic.creation.default.…`. All other settings under a group's name are
topic settings. As in Kafka Connect, any of these settings enables topic creation, and then
`topic.creation.default.partitions` and `topic.creation.default.replication.factor` are required.
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
_GROUP_OPTIONS = ("include", "exclude", "partitions", "replication.factor")


def _options(group: str, partitions: object, replicas: object) -> tuple[Option, ...]:
    prefix = f"{PREFIX}{group}."
    return (
        Option(f"{prefix}partitions", ConfigType.INT, partitions, validator=_COUNT),
        Option(f"{prefix}replication.factor", ConfigType.SHORT, replicas, validator=_COUNT),
    )


def _joined(name: str, originals: Mapping[str, str], errors: dict[str, list[str]]) -> str:
    """Returns one regular expression for the list of expressions in a setting. Adds an error if it
    is invalid."""
    text = "|".join(pattern.strip() for pattern in originals.get(name, "").split(","))
    try:
        re.compile(text)
    except re.error as error:
        prefix = f"Invalid value {originals[name]} for configuration {name}"
        errors[name] = [f"{prefix}: Syntax error in regular expression: {error}"]
    return text


def rules(originals: Mapping[str, str], worker: Mapping[str, str]) -> tuple[list[Rule], dict[str, list[str]]]:
    """Returns (rules of the groups in their order, then of the default; errors by name). Without
    rules the worker creates no topics."""
    is_configured = any(name.startswith(PREFIX) for name in originals)
    if not is_configured or worker.get(ENABLE, "true").strip().lower() == "false":
        return [], {}
    names = [group.strip() for group in originals.get(f"{PREFIX}groups", "").split(",") if group.strip()]
    errors: dict[str, list[str]] = {}
    if len(set(names)) < len(names):
        aliases = ", ".join(names)
        message = f"Invalid value [{aliases}] for configuration {PREFIX}groups: Duplicate alias provided."
        errors[f"{PREFIX}groups"] = [message]
    partitions, replicas = _counts(DEFAULT, REQUIRED, REQUIRED, originals, errors)
    groups = []
    for name in [group for group in names if group != DEFAULT]:
        count, factor = _counts(name, partitions, replicas, originals, errors)
        include = _joined(f"{PREFIX}{name}.include", originals, errors)
        exclude = _joined(f"{PREFIX}{name}.exclude", originals, errors)
        groups.append(Rule(include, exclude, count, factor, _configs(name, originals)))
    default = Rule(partitions=partitions, replicas=replicas, configs=_configs(DEFAULT, originals))
    return [*groups, default], errors


def _counts(
    group: str, partitions: object, replicas: object, originals: Mapping[str, str], errors: dict[str, list[str]]
) -> tuple[int, int]:
    values, option_errors = parse(_options(group, partitions, replicas), originals)
    errors.update(option_errors)
    count, factor = (-1 if value is None else int(value) for value in values.values())
    return count, factor


def _configs(group: str, originals: Mapping[str, str]) -> dict[str, str]:
    prefix = f"{PREFIX}{group}."
    settings = {name[len(prefix) :]: value for name, value in originals.items() if name.startswith(prefix)}
    return {name: value for name, value in settings.items() if name not in _GROUP_OPTIONS}
