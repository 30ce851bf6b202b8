"""[pure] Validation of topic names."""

from __future__ import annotations

import re
from collections.abc import Iterable

from kavka.common.errors import ErrorCode, KafkaError

MAX_LENGTH = 249
CLUSTER_METADATA_TOPIC = "__cluster_metadata"

_LEGAL = re.compile(r"[a-zA-Z0-9._-]+")


def check(name: str) -> None:
    """Raises INVALID_TOPIC_EXCEPTION: the name is part of a folder name."""
    if not name:
        raise _invalid("A topic needs a name.")
    if name in (".", ".."):
        raise _invalid(f"'{name}' cannot be the name of a topic.")
    if len(name) > MAX_LENGTH:
        raise _invalid(f"A topic's name has at most {MAX_LENGTH} characters, this one has {len(name)}.")
    if not _LEGAL.fullmatch(name):
        raise _invalid(f"A topic's name is made of ASCII letters, digits, '.', '_' and '-' only: '{name}' is not.")


def check_collision(name: str, others: Iterable[str]) -> None:
    """Metrics replace '.' with '_', so names that differ only there would collide."""
    if "." not in name and "_" not in name:
        return
    unified = name.replace(".", "_")
    for other in others:
        if other != name and other.replace(".", "_") == unified:
            raise _invalid(f"'{name}' is too close to the existing topic '{other}': '.' and '_' count as the same.")


def _invalid(message: str) -> KafkaError:
    return KafkaError(ErrorCode.INVALID_TOPIC_EXCEPTION, message)
