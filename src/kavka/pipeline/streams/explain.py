"""`Topology.explain()`: how each node will run, on how many tasks, and why not faster. No I/O."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import fields
from typing import Any

from kavka.pipeline.streams.expressions import Expression, Listed
from kavka.pipeline.streams.lowering import Lowered, Way, lower
from kavka.pipeline.streams.plan import Plan, make_plan, source_topics
from kavka.pipeline.streams.settings import settings_of
from kavka.pipeline.streams.topology import Node, Operator, ProcessorNode, Subtopology, Topology


def explain(topology: Topology, partitions: Mapping[str, int] | int, config: Mapping[str, Any] | None) -> str:
    """The text of `Topology.explain`."""
    settings = settings_of({"application.id": "application", **(config or {})}, need_servers=False)
    topics = source_topics(topology)
    counts = dict.fromkeys(topics, partitions) if isinstance(partitions, int) else dict(partitions)
    plan = make_plan(topology, {topic: counts.get(topic, 1) for topic in topics})
    return "\n".join(_lines(topology, plan, lower(topology, plan, settings))) + "\n"


def _lines(topology: Topology, plan: Plan, lowered: Lowered) -> Iterator[str]:
    for sub in topology.subtopologies():
        read = [topic for source in sub.sources for topic in source.topics if topic not in plan.shuffled]
        if sub.global_:
            yield f"Sub-topology {sub.id}: a copy in each of {len(plan.tasks)} tasks"
        elif sub in plan.stateful:
            yield f"Sub-topology {sub.id}: {_tasks(sum(slot.sub == sub.id for slot in plan.tasks))} with state"
        else:
            count = sum(plan.partitions[topic] for topic in read)
            yield f"Sub-topology {sub.id}: {_tasks(count)} where records are read"
        for node in sub.nodes:
            reason = _reason(plan, lowered, sub, node)
            yield f"  {node.name}: {lowered.way(node.name)}{f' ({reason})' if reason else ''}"


def _tasks(count: int) -> str:
    return f"{count} task{'' if count == 1 else 's'}"


def _reason(plan: Plan, lowered: Lowered, sub: Subtopology, node: Node) -> str:
    way = lowered.way(node.name)
    merging = [lane.aggregate for lane in lowered.lanes.values()]
    if node in merging:
        return "parts are aggregated where records are read"
    if way is Way.ARROW and isinstance(node, ProcessorNode) and _calls_python(node.operator):
        return "calls a Python function for each record; an expression does not"
    if way is Way.PYTHON:
        return "runs where its state is" if sub in plan.stateful else lowered.reasons.get(node.name, "")
    return lowered.frame_reason if way is Way.ARROW else ""


def _calls_python(operator: Operator) -> bool:
    values = [getattr(operator, field.name) for field in fields(operator)]  # type: ignore[arg-type]
    return any(callable(value) and not isinstance(value, Expression | Listed) for value in values)
