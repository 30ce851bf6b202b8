"""`topology.json`: the stores and tasks of an application's state. Needs no Spark session.

The file is in the same folder as the checkpoint, and is first written before the first micro-batch.
A later start adapts its plan to the file. State belongs to the name of a store: a sub-topology gets
the tasks that have its stores, even if its other nodes have changed. A topology that adds stores or
sub-topologies extends the file. A topology that removes a store, changes the type of a store, or
merges or splits tasks is rejected, because Spark cannot change the keys of existing state.

    format       the version of this format, 3
    application  the application.id, which is also the name of the folder
    id           a random id of this state, in the names of its folders on the disks of executors
    width        the number of partitions of Spark's shuffle
    patterns     for each source node with a pattern: the highest partition count of its topics
    sources      the sources of the query: "records", and "global" for global tables
    tasks        for each stateful sub-topology: its stores, the topics that it reads, and the key
                 of each task in the order of the partitions
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
_RESET = "set a new application.id, or run kafka-streams-application-reset and clean_up() to rebuild the state"

Layout = Mapping[str, Any]


def read_layout(folder: AnyPath) -> Layout | None:
    try:
        layout: Layout = json.loads((folder / _FILE).read_text())
    except FileNotFoundError:
        return None
    except ValueError as error:
        raise StreamsException(f"{_FILE} in {folder} cannot be read: {error}; {_RESET}") from None
    if layout.get("format") != FORMAT:
        raise StreamsException(f"another version of Kavka wrote the state in {folder}: {_RESET}")
    owner = layout.get("application", folder.name)
    if owner != folder.name:
        raise StreamsException(f"the state in {folder} belongs to the application {owner}: {_RESET}")
    return layout


def write_layout(folder: AnyPath, layout: Layout) -> None:
    create_own_folder(folder)
    replace_text(folder / _FILE, json.dumps({**layout, "application": folder.name}))


def fit(topology: Topology, plan: Plan, stored: Layout | None) -> tuple[Plan, Layout]:
    """Return the plan with the tasks that have the state of its stores, and the layout to write.
    Raises StreamsException if the topology does not match the stored layout."""
    sources = ["records", "global"] if plan.globals else ["records"]
    try:
        entries = {} if stored is None else _stored_entries(topology, plan, stored)
        if stored is not None and stored["sources"] != sources:
            raise StreamsException("the first global table was added, or the last was removed")
        if stored is not None and bool(stored["tasks"]) != bool(plan.tasks):
            raise StreamsException("the first store was added, or the last was removed")
    except StreamsException as error:
        raise StreamsException(f"the topology does not match the stored state: {error}; {_RESET}") from None
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
        "stores": {name: _store_type(topology, name) for name in (*sub.stores, *topology.global_stores)},
        "topics": _topics(sub),
        "keys": [task.key for task in plan.tasks if task.sub == sub.id],
    }


def _task_count(plan: Plan, sub: Subtopology) -> int:
    return sum(task.sub == sub.id for task in plan.tasks)


def _topics(sub: Subtopology) -> list[str]:
    return sorted(source.subscription() for source in sub.sources)


def _store_type(topology: Topology, store: str) -> list[Any]:
    builder = topology.stores[store]
    return [builder.kind, builder.timestamped, builder.window_size, builder.duplicates]


def _stored_entries(topology: Topology, plan: Plan, stored: Layout) -> dict[int, dict[str, Any]]:
    """Return the stored entry of each sub-topology, by id. A sub-topology with only new stores has
    no entry. Raises StreamsException."""
    global_stores = set(topology.global_stores)
    matches: dict[int, dict[str, Any]] = {}
    for entry in stored["tasks"]:
        stores = set(entry["stores"]) - global_stores
        for name, stored_type in entry["stores"].items():
            if name not in topology.stores:
                raise StreamsException(f"the store {name} was removed")
            store_type = _store_type(topology, name)
            if stored_type != store_type:
                raise StreamsException(f"the type of the store {name} changed from {stored_type} to {store_type}")
        subs = [sub for sub in plan.stateful if stores & set(sub.stores)]
        if not stores:
            subs = [sub for sub in plan.stateful if not sub.stores and entry["topics"] == _topics(sub)]
        if len(subs) > 1:
            raise StreamsException(f"the stores {', '.join(sorted(stores))} are now in several sub-topologies")
        for sub in subs:
            if sub.id in matches:
                names = sorted({*stores, *matches[sub.id]["stores"]})
                raise StreamsException(f"the stores {', '.join(names)} of two sub-topologies are now in one")
            count = _task_count(plan, sub)
            if count != len(entry["keys"]):
                raise StreamsException(
                    f"the state of {', '.join(sorted(stores))} has {len(entry['keys'])} tasks, but the topics "
                    f"{', '.join(entry['topics'])} now have {count} partitions"
                )
            matches[sub.id] = entry
    return matches
