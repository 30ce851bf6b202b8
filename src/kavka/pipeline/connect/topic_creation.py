"""`topic.creation.…` of sources: the settings of topics that a source creates.

`topic.creation.groups` names groups. Each has `topic.creation.NAME.include` and `exclude`, lists of
regular expressions. A topic is created with the settings of the first group that it matches, else
with those of `topic.creation.default.…`. All other settings under a group's name are topic
settings. As in Kafka Connect, any of these settings enables topic creation, and then the partitions
and replicas of the default are required.
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


def _joined(name: str, originals: Mapping[str, str], errors: dict[str, list[str]]) -> str:
    text = "|".join(pattern.strip() for pattern in originals.get(name, "").split(","))
    try:
        re.compile(text)
    except re.error as error:
        message = (
            f"Invalid value {originals[name]} for configuration {name}: Syntax error in regular expression: {error}"
        )
        errors[name] = [message]
    return text


def rules(originals: Mapping[str, str], worker: Mapping[str, str]) -> tuple[list[Rule], dict[str, list[str]]]:
    """(the groups in their order and the default, errors by name). Empty: the broker creates the
    topics."""
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
        include, exclude = (_joined(f"{PREFIX}{name}.{list_}", originals, errors) for list_ in ("include", "exclude"))
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
    under = f"{PREFIX}{group}."
    settings = {name[len(under) :]: value for name, value in originals.items() if name.startswith(under)}
    return {name: value for name, value in settings.items() if name not in _OWN}
