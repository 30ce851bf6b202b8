"""The stores of a worker for configurations, states and offsets: in memory and a file, or in
compacted topics.

The records in the topics have the keys and JSON of Kafka Connect, so that its tools can read them:

| topic | key | value |
|---|---|---|
| configs | `connector-NAME` | `{"properties": {…}}`; null: deleted |
| | `target-state-NAME` | `{"state": "STARTED"}`, PAUSED, or with `"state.v2": "STOPPED"` |
| | `task-NAME-N` | `{"properties": {…}}` |
| | `commit-NAME` | `{"tasks": 2}`: the tasks 0 and 1 exist, later records of tasks do not count |
| | `session-key` | `{"key", "algorithm", "creation-timestamp"}` |
| | `logger-cluster-LOGGER` | `{"level": "DEBUG"}` |
| status | `status-connector-NAME` | `{"state", "trace", "worker_id", "generation"}` |
| | `status-task-NAME-N` | the same |
| | `status-topic-TOPIC:connector-NAME` | `{"topic": {"name", "connector", "task", …}}` |
| offsets | `["NAME",{"table":"users"}]` | `{"incrementing": 7}` |

One key of the offsets topic is specific to Kavka: `["NAME",{"kavka.batch":"plan"}]`, the batch that
a source with exactly-once delivery has started or finished.
"""

from __future__ import annotations

import json
import os
import threading
import time
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from kavka.pipeline.connect import loggers
from kavka.pipeline.connect.api import Offsets
from kavka.pipeline.connect.errors import ConnectError
from kavka.pipeline.connect.session_keys import SessionKey

STARTED, PAUSED, STOPPED = "STARTED", "PAUSED", "STOPPED"
_PLAN = {"kavka.batch": "plan"}
_SESSION_KEY = "session-key"
OF_BATCH = "kavka."
"""The prefix of fields of an offset that only the plan of a batch has."""


class Table(Protocol):
    """Strings by key. `put` returns when the values are durable; None deletes a key."""

    def get(self, key: str) -> str | None: ...

    def put(self, values: Mapping[str, str | None]) -> None: ...

    def items(self) -> list[tuple[str, str]]: ...


class MemoryTable:
    """A table that does not survive the process."""

    def __init__(self) -> None:
        self._values: dict[str, str] = {}

    def get(self, key: str) -> str | None:
        return self._values.get(key)

    def put(self, values: Mapping[str, str | None]) -> None:
        for key, value in values.items():
            if value is None:
                self._values.pop(key, None)
            else:
                self._values[key] = value

    def items(self) -> list[tuple[str, str]]:
        return list(self._values.items())


class FileTable(MemoryTable):
    """A JSON object in a file. `put` writes a temporary file and renames it: a crash leaves the old
    or the new content. Any thread may call it."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self._path = path
        self._lock = threading.Lock()
        try:
            self._values = json.loads(path.read_text())
        except FileNotFoundError:
            pass
        except ValueError as error:
            raise ConnectError(f"{path} is not an offset file: {error}") from None

    def put(self, values: Mapping[str, str | None]) -> None:
        with self._lock:
            super().put(values)
            self._path.parent.mkdir(parents=True, exist_ok=True)
            temporary = self._path.with_name(f"{self._path.name}.tmp")
            with temporary.open("w") as file:
                json.dump(self._values, file, indent=1)
                file.flush()
                os.fsync(file.fileno())
            temporary.replace(self._path)
            # The next batch starts only after the offsets of this batch are durable.
            sync_folder(self._path.parent)


def sync_folder(path: Path) -> None:
    """Makes renames of files in the folder durable."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


# --- configurations


class ConfigStore:
    """The configurations and target states of connectors."""

    def __init__(self, table: Table) -> None:
        self._table = table

    def names(self) -> list[str]:
        prefix = "connector-"
        names = [key[len(prefix) :] for key, _ in self._table.items() if key.startswith(prefix)]
        return sorted(name for name in names if self.config(name) is not None)

    def config(self, name: str) -> dict[str, str] | None:
        record = _parsed(self._table.get(f"connector-{name}"))
        properties = None if record is None else record.get("properties")
        return {str(key): str(value) for key, value in properties.items()} if isinstance(properties, dict) else None

    def target(self, name: str) -> str:
        record = _parsed(self._table.get(f"target-state-{name}")) or {}
        return str(record.get("state.v2") or record.get("state") or STARTED)

    def put(self, name: str, config: Mapping[str, str], target: str | None = None) -> None:
        values: dict[str, str | None] = {}
        if target is not None:
            values[f"target-state-{name}"] = _target_json(target)
        values[f"connector-{name}"] = _to_json({"properties": dict(config)})
        self._table.put(values)

    def task_configs(self, name: str) -> list[dict[str, str]]:
        """Returns the published configurations of the tasks. Tasks do not use them: Kafka Connect's
        tools read them."""
        count = (_parsed(self._table.get(f"commit-{name}")) or {}).get("tasks")
        configs = []
        for number in range(count if isinstance(count, int) else 0):
            properties = (_parsed(self._table.get(f"task-{name}-{number}")) or {}).get("properties")
            if not isinstance(properties, dict):
                return []
            configs.append(properties)
        return configs

    def put_task_configs(self, name: str, configs: Sequence[Mapping[str, str]]) -> None:
        """Stores the configurations, and then their number, which makes them valid."""
        self._table.put({
            f"task-{name}-{number}": _to_json({"properties": dict(config)}) for number, config in enumerate(configs)
        })  # fmt: skip
        self._table.put({f"commit-{name}": _to_json({"tasks": len(configs)})})

    def session_key(self) -> SessionKey | None:
        record = _parsed(self._table.get(_SESSION_KEY))
        return None if record is None else SessionKey.of(record)

    def put_session_key(self, key: SessionKey) -> None:
        self._table.put({_SESSION_KEY: _to_json(key.record())})

    def put_log_level(self, name: str, level: str) -> None:
        self._table.put(dict([loggers.record(name, level)]))

    def put_target(self, name: str, state: str) -> None:
        self._table.put({f"target-state-{name}": _target_json(state)})

    def delete(self, name: str) -> None:
        self._table.put({f"connector-{name}": None, f"target-state-{name}": None})


def _target_json(state: str) -> str:
    if state == STOPPED:
        # Workers of Kafka before 3.5 do not support STOPPED.
        return _to_json({"state": PAUSED, "state.v2": STOPPED})
    return _to_json({"state": state, "state.v2": state})


def _parsed(text: str | None) -> dict[str, Any] | None:
    """Returns the JSON object in a record; None if the record contains anything else."""
    try:
        value = json.loads(text or "null")
    except ValueError:
        return None
    return value if isinstance(value, dict) else None


def _to_json(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"))


# --- states


@dataclass(frozen=True)
class Status:
    """The published state of a connector or a task."""

    state: str
    worker_id: str
    trace: str | None = None
    generation: int = 0


class StatusStore:
    """The states of connectors and tasks, and the topics that they use."""

    def __init__(self, table: Table) -> None:
        self._table = table

    def connector(self, name: str) -> Status | None:
        return self._get(f"status-connector-{name}")

    def tasks(self, name: str) -> dict[int, Status]:
        """Returns the states of the tasks, by their numbers in order."""
        statuses = {number: self._get(self._task_key(name, number)) for number in self._task_numbers(name)}
        return {number: status for number, status in statuses.items() if status is not None}

    def _task_key(self, name: str, number: int) -> str:
        return f"status-task-{name}-{number}"

    def _task_numbers(self, name: str) -> list[int]:
        prefix = self._task_key(name, 0)[:-1]
        numbers = [key[len(prefix) :] for key, _ in self._table.items() if key.startswith(prefix)]
        return sorted(int(number) for number in numbers if number.isascii() and number.isdigit() and len(number) < 10)

    def _get(self, key: str) -> Status | None:
        record = _parsed(self._table.get(key))
        if record is None or not record.get("state"):
            return None
        trace = record.get("trace")
        generation = record.get("generation")
        return Status(
            str(record["state"]),
            str(record.get("worker_id") or ""),
            None if trace is None else str(trace),
            generation if isinstance(generation, int) else 0,
        )

    def put(self, name: str, connector: Status | None = None, tasks: Mapping[int, Status] | None = None) -> None:
        """Stores the states that are not None. `tasks` are all tasks of the connector: the states
        of other tasks are deleted."""
        values: dict[str, str | None] = {}
        if connector is not None:
            values[f"status-connector-{name}"] = _status_json(connector)
        if tasks is not None:
            values |= {self._task_key(name, number): None for number in self._task_numbers(name)}
            values |= {self._task_key(name, number): _status_json(status) for number, status in tasks.items()}
        if values:
            self._table.put(values)

    def delete(self, name: str) -> None:
        self.put(name, tasks={})
        topics: dict[str, str | None] = {self._topic_key(name, topic): None for topic in self.topics(name)}
        self._table.put({**topics, f"status-connector-{name}": None})

    def names(self) -> list[str]:
        prefix = "status-connector-"
        return [key[len(prefix) :] for key, _ in self._table.items() if key.startswith(prefix)]

    # --- topics that a connector uses

    def _topic_key(self, name: str, topic: str) -> str:
        return f"status-topic-{topic}:connector-{name}"

    def topics(self, name: str) -> list[str]:
        topics = []
        for key, text in self._table.items():
            if key.startswith("status-topic-"):
                entry = (_parsed(text) or {}).get("topic")
                if isinstance(entry, dict) and entry.get("connector") == name and entry.get("name"):
                    topics.append(str(entry["name"]))
        return sorted(topics)

    def add_topics(self, name: str, topics: set[str]) -> None:
        values = {}
        for topic in sorted(topics - set(self.topics(name))):
            entry = {"name": topic, "connector": name, "task": 0, "discoverTimestamp": int(time.time() * 1000)}
            values[self._topic_key(name, topic)] = _to_json({"topic": entry})
        if values:
            self._table.put(values)

    def reset_topics(self, name: str) -> None:
        self._table.put({self._topic_key(name, topic): None for topic in self.topics(name)})


def _status_json(status: Status) -> str:
    record = {"state": status.state, "trace": status.trace, "worker_id": status.worker_id}
    return _to_json({**record, "generation": status.generation})


# --- offsets


@dataclass(frozen=True)
class Plan:
    """The last batch of a source with exactly-once delivery. `done` means that its records were
    written."""

    id: str
    number: int
    start: Offsets
    end: Offsets
    done: bool
    tasks: int | None = None
    """The number of tasks that divide the batch, None in records of earlier versions. A batch that
    runs again is divided in the same way."""


class OffsetStore:
    """The offsets of incremental sources. Only the worker that runs a connector writes its
    offsets."""

    def __init__(self, table: Table) -> None:
        self._table = table

    def entries(self, name: str) -> list[tuple[dict[str, Any], dict[str, Any]]]:
        """Returns (source partition, source offset) pairs, in the form of `GET …/offsets`."""
        entries = []
        for key, text in self._table.items():
            try:
                owner, partition = json.loads(key)
            except (ValueError, TypeError):
                continue
            offset = _parsed(text)
            if owner == name and isinstance(partition, dict) and partition != _PLAN and offset is not None:
                entries.append((partition, offset))
        return entries

    def offsets(self, name: str, field: str) -> Offsets:
        return {str(partition[field]): offset for partition, offset in self.entries(name) if field in partition}

    def put(self, name: str, field: str, start: Offsets, end: Offsets) -> None:
        values: dict[str, str | None] = {}
        for partition in {**start, **end}:
            if end.get(partition) != start.get(partition):
                offset = end.get(partition)
                values[_key(name, {field: partition})] = None if offset is None else _to_json(_lasting(offset))
        if values:
            self._table.put(values)

    def alter(self, name: str, entries: list[tuple[dict[str, Any], dict[str, Any] | None]]) -> None:
        values = {_key(name, partition): None if offset is None else _to_json(offset) for partition, offset in entries}
        self._table.put({**values, _key(name, _PLAN): None})

    def reset(self, name: str) -> None:
        self.alter(name, [(partition, None) for partition, _ in self.entries(name)])

    # --- plans, for exactly once

    def plan(self, name: str) -> Plan | None:
        record = _parsed(self._table.get(_key(name, _PLAN)))
        if record is None:
            return None
        return Plan(record["id"], record["number"], record["start"], record["end"], record["done"], record.get("tasks"))

    def identity(self, name: str) -> str:
        """Returns the id of the last plan, or a new id if there is no plan. `alter` and `reset`
        delete the plan: batch numbers then start again, under a new id."""
        plan = self.plan(name)
        return plan.id if plan is not None else uuid.uuid4().hex

    def put_plan(
        self, name: str, number: int, start: Offsets, end: Offsets, *, done: bool, tasks: int | None = None
    ) -> None:
        plan = {"id": self.identity(name), "number": number, "start": start, "end": end, "done": done, "tasks": tasks}
        self._table.put({_key(name, _PLAN): _to_json(plan)})


def _lasting(offset: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the offset without the fields that describe a single batch."""
    return {name: value for name, value in offset.items() if not name.startswith(OF_BATCH)}


def _key(name: str, partition: Mapping[str, Any]) -> str:
    return _to_json([name, dict(partition)])
