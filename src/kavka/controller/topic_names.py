"""[pure] Validation of topic names."""

from __future__ import annotations

import re
from collections.abc import Mapping

from kavka.common.errors import ErrorCode, KafkaError

MAX_LENGTH = 249
CLUSTER_METADATA_TOPIC = "__cluster_metadata"

_LEGAL_NAME = re.compile(r"[a-zA-Z0-9._-]+")


def check(name: str) -> None:
    """Raise INVALID_TOPIC_EXCEPTION if `name` is not a legal topic name."""
    if not name:
        raise _invalid("A topic name must not be empty.")
    if name in (".", ".."):
        raise _invalid(f"'{name}' is not allowed as a topic name.")
    if len(name) > MAX_LENGTH:
        raise _invalid(f"A topic name has at most {MAX_LENGTH} characters; this name has {len(name)}.")
    if not _LEGAL_NAME.fullmatch(name):
        raise _invalid(f"The topic name '{name}' has characters other than ASCII letters, digits, '.', '_' and '-'.")


def metric_name(name: str) -> str:
    """Return the name of a topic in metrics."""
    return name.replace(".", "_")


def check_collision(name: str, topics_by_metric_name: Mapping[str, str]) -> None:
    """Raise INVALID_TOPIC_EXCEPTION if an existing name differs only in '.' and '_', because
    metrics replace '.' with '_'."""
    other = topics_by_metric_name.get(metric_name(name), name)
    if other != name:
        raise _invalid(f"'{name}' collides with the existing topic '{other}': '.' and '_' are treated as equal.")


def _invalid(message: str) -> KafkaError:
    return KafkaError(ErrorCode.INVALID_TOPIC_EXCEPTION, message)
