"""`topology.json`: which task has which stores in an application's state. No Spark.

The file lies beside the checkpoint. Its first version is written before the first micro-batch. A
later start fits its plan to the file: state belongs to the name of a store, so a sub-topology
continues with the tasks that have its stores, whatever its other nodes are. A topology that adds
stores or sub-topologies extends the file. One that removes a store, changes its kind, or combines
or divides tasks is refused, because Spark's groups cannot be renamed.

    format       3
    application  the application's id, which is also the name of the folder
    id           of this state: names its folders on the disks of executors
    width        partitions of Spark's shuffle
    patterns     by source: the partitions that its topics had
    sources      of the query: "records", and "global" for global tables
    tasks        by sub-topology: its stores, the topics it reads, the keys of its tasks by
                 partition
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from kavka.pipeline.spark.files import AnyPath, replace_text
from kavka.pipeline.streams.errors import StreamsException
from kavka.pipeline.streams.plan import Plan, TaskSlot, unused_keys
from kavka.pipeline.streams.state_folder import create_own_folder
from kavka.pipeline.streams.topology import Subtopology, Topology

FORMAT = 3
_FILE = "topology.json"
_RESET = "give a new application.id, or run kafka-streams-application-reset and clean_up() to rebuild the state"

Layout = Mapping[str, Any]


def read_layout(folder: AnyPath) -> Layout | None:
    try:
        layout: Layout = json.loads((folder / _FILE).read_text())
    except FileNotFoundError:
        return None
    except ValueError as error:
        raise StreamsException(f"{_FILE} in {folder} cannot be read: {error}; {_RESET}") from None
    if layout.get("format") != FORMAT:
        raise StreamsException(f"an earlier version of Kavka wrote the state in {folder}: {_RESET}")
    owner = layout.get("application", folder.name)
    if owner != folder.name:
        raise StreamsException(f"the state in {folder} is of the application {owner}: {_RESET}")
    return layout


def write_layout(folder: AnyPath, layout: Layout) -> None:
    create_own_folder(folder)
    replace_text(folder / _FILE, json.dumps({**layout, "application": folder.name}))


def fit(topology: Topology, plan: Plan, stored: Layout | None) -> tuple[Plan, Layout]:
    """The plan with the tasks that have the state of its stores, and the layout to write."""
    sources = ["records", "global"] if plan.globals else ["records"]
    try:
        entries = {} if stored is None else _matches(topology, plan, stored)
        if stored is not None and stored["sources"] != sources:
            raise StreamsException("it gains its first global table, or loses its last")
        if stored is not None and bool(stored["tasks"]) != bool(plan.tasks):
            raise StreamsException("it gains its first store, or loses its last")
    except StreamsException as error:
        raise StreamsException(f"the state is of another topology: {error}; {_RESET}") from None
    tasks: list[TaskSlot] = []
    used = set() if stored is None else {key for entry in stored["tasks"] for key in entry["keys"]}
    for sub in plan.stateful:
        keys = entries[sub.id]["keys"] if sub.id in entries else unused_keys(_task_count(plan, sub), plan.width, used)
        used |= set(keys)
        tasks += [TaskSlot(key, sub.id, partition) for partition, key in enumerate(keys)]
    plan = replace(plan, tasks=tuple(tasks))
    layout = {
        "format": FORMAT,
        "id": uuid.uuid4().hex if stored is None else stored["id"],
        "width": plan.width,
        "patterns": {node.name: max(plan.partitions[topic] for topic in node.topics) for node in topology.patterns()},
        "sources": sources,
        "tasks": [_entry(topology, plan, sub) for sub in plan.stateful],
    }
    return plan, layout


def _entry(topology: Topology, plan: Plan, sub: Subtopology) -> dict[str, Any]:
    return {
        "stores": {name: _kind(topology, name) for name in (*sub.stores, *topology.global_stores)},
        "topics": _topics(sub),
        "keys": [task.key for task in plan.tasks if task.sub == sub.id],
    }


def _task_count(plan: Plan, sub: Subtopology) -> int:
    return sum(task.sub == sub.id for task in plan.tasks)


def _topics(sub: Subtopology) -> list[str]:
    return sorted(source.subscription() for source in sub.sources)


def _kind(topology: Topology, store: str) -> list[Any]:
    builder = topology.stores[store]
    return [builder.kind, builder.timestamped, builder.window_size, builder.duplicates]


def _matches(topology: Topology, plan: Plan, stored: Layout) -> dict[int, dict[str, Any]]:
    """By sub-topology: the entry of its tasks. A sub-topology with only new stores has none."""
    global_stores = set(topology.global_stores)
    matches: dict[int, dict[str, Any]] = {}
    for entry in stored["tasks"]:
        stores = set(entry["stores"]) - global_stores
        for name, kind in entry["stores"].items():
            if name not in topology.stores:
                raise StreamsException(f"it has no store {name}")
            if kind != _kind(topology, name):
                raise StreamsException(f"the store {name} was {kind} and is {_kind(topology, name)}")
        subs = [sub for sub in plan.stateful if stores & set(sub.stores)]
        if not stores:
            subs = [sub for sub in plan.stateful if not sub.stores and entry["topics"] == _topics(sub)]
        if len(subs) > 1:
            raise StreamsException(f"the stores {', '.join(sorted(stores))} are no longer in one sub-topology")
        for sub in subs:
            if sub.id in matches:
                names = sorted({*stores, *matches[sub.id]["stores"]})
                raise StreamsException(f"the stores {', '.join(names)} were in two sub-topologies and are in one")
            count = _task_count(plan, sub)
            if count != len(entry["keys"]):
                raise StreamsException(
                    f"the stores {', '.join(sorted(stores))} are in {len(entry['keys'])} tasks, and the topics "
                    f"{', '.join(entry['topics'])} have {count} partitions"
                )
            matches[sub.id] = entry
    return matches
