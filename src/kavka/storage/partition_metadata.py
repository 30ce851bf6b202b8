"""`partition.metadata`: the id of the topic that a folder belongs to.

    version: 0
    topic_id: nPc0b5lqTUO4oXKO9Hqeow      22 characters, base64 with - and _

Without the topic id, a new topic would use the folder of a deleted topic of the same name.
"""

from __future__ import annotations

import os
from uuid import UUID

from kavka.common.types import uuid_from_text, uuid_text
from kavka.storage.files import atomic_write, read_file, storage_error

FILE_NAME = "partition.metadata"


def read_topic_id(dir: str) -> UUID | None:
    """Return the topic id of a folder, or None if the file is missing. Raises KAFKA_STORAGE_ERROR
    if the file is malformed."""
    path = f"{dir}/{FILE_NAME}"
    try:
        fields = dict(line.split(": ", 1) for line in read_file(path).decode("ascii").splitlines())
        if int(fields["version"]) != 0:
            raise ValueError(f"unsupported version {fields['version']}")
        return uuid_from_text(fields["topic_id"])
    except FileNotFoundError:
        return None
    except (KeyError, ValueError) as error:
        raise storage_error(f"{path} is malformed: {error}") from error


def write_topic_id(dir: str, topic_id: UUID) -> None:
    text = f"version: 0\ntopic_id: {uuid_text(topic_id)}"
    atomic_write(os.path.join(dir, FILE_NAME), text.encode())
