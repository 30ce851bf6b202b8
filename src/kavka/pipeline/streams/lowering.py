"""How each node of a topology runs: the only place that decides it. No I/O.

An operator has up to three ways, from the fastest:

- Spark expression: a function of Spark's frames. A query without state whose only chain of
  operators are expressions runs in Spark alone.
- Arrow batch: a function of the columns of a batch (`batches.py`). A lane, a chain of such
  operators without a fork from a source to a sink or to an aggregate, runs where the records are
  read.
- Python record: the node that the operator makes, for each record. Every operator has this way.

The state of a task is the same with each of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, fields
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from kavka.pipeline.streams import batches, operators
from kavka.pipeline.streams.aggregates import AggregateStep
from kavka.pipeline.streams.expression_columns import to_column
from kavka.pipeline.streams.expressions import BOOLEAN, TEXT, Expression, Listed
from kavka.pipeline.streams.plan import Plan, make_plan, source_topics
from kavka.pipeline.streams.serdes import Serde, Serdes
from kavka.pipeline.streams.settings import Settings, settings_of
from kavka.pipeline.streams.topology import Node, Operator, ProcessorNode, SinkNode, SourceNode, Subtopology, Topology
from kavka.pipeline.streams.windows import TimeWindows

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

FrameStep = Callable[["DataFrame"], "DataFrame"]
# The kinds of a record's key and value in a frame: TEXT, or "" for bytes that nothing reads.
Kinds = tuple[str, str]


class Way(StrEnum):
    SPARK = "Spark expression"
    ARROW = "Arrow batch"
    PYTHON = "Python record"


@dataclass(frozen=True)
class Ways:
    """`frame` returns the step and the kinds after it, or None if the operator's function is not an
    expression of what the frame has."""

    batch: Callable[[Any], batches.Step]
    frame: Callable[[Any, Kinds], tuple[FrameStep, Kinds] | None] | None = None


def _reads(expression: Expression, kinds: Kinds) -> bool:
    """Whether a frame with these kinds has the columns of the expression."""
    columns = expression.columns()
    return all(columns.get(name, kind) == kind for name, kind in zip(("key", "value"), kinds, strict=True))


def _filter_frame(operator: operators.Filter, kinds: Kinds) -> tuple[FrameStep, Kinds] | None:
    test = operator.predicate
    if not isinstance(test, Expression) or test.kind != BOOLEAN or not _reads(test, kinds):
        return None
    # None is neither true nor false: filter drops the record, and filter_not forwards it.
    chosen = ~(test & ~test.is_null()) if operator.negated else test
    return lambda frame: frame.where(to_column(chosen)), kinds


def _map_frame(operator: operators.SelectKey | operators.MapValues, kinds: Kinds) -> tuple[FrameStep, Kinds] | None:
    mapper = operator.mapper
    if not isinstance(mapper, Expression) or mapper.kind != TEXT or not _reads(mapper, kinds):
        return None
    if isinstance(operator, operators.SelectKey):
        return lambda frame: frame.withColumn("key", to_column(mapper)), (TEXT, kinds[1])
    return lambda frame: frame.withColumn("value", to_column(mapper)), (kinds[0], TEXT)


def _flat_map_values_frame(operator: operators.FlatMapValues, kinds: Kinds) -> tuple[FrameStep, Kinds] | None:
    mapper = operator.mapper
    if not isinstance(mapper, Listed) or not _reads(mapper.expression, kinds):
        return None

    def step(frame: DataFrame) -> DataFrame:
        from pyspark.sql import functions as f

        return frame.withColumn("value", f.explode(to_column(mapper.expression)))

    return step, (kinds[0], TEXT)


# Operators that are not here run record by record.
WAYS: dict[type[Operator], Ways] = {
    operators.PassThrough: Ways(batches.pass_through_step, lambda _, kinds: (lambda frame: frame, kinds)),
    operators.Filter: Ways(batches.filter_step, _filter_frame),
    operators.SelectKey: Ways(batches.select_key_step, _map_frame),
    operators.MapValues: Ways(batches.map_values_step, _map_frame),
    operators.FlatMapValues: Ways(batches.flat_map_values_step, _flat_map_values_frame),
    operators.NonNullKey: Ways(batches.non_null_key_step),
    operators.Map: Ways(batches.map_step),
    operators.Peek: Ways(batches.peek_step),
}


@dataclass(frozen=True)
class Lane:
    """A chain of nodes that run over batches. `aggregate` is the aggregate whose parts it makes:
    its end, or what reads the topic of the sink at its end."""

    source: SourceNode
    nodes: tuple[ProcessorNode, ...]
    end: SinkNode | ProcessorNode
    aggregate: ProcessorNode | None = None

    @property
    def aggregate_step(self) -> AggregateStep:
        assert self.aggregate is not None
        assert isinstance(self.aggregate.operator, AggregateStep)
        return self.aggregate.operator


@dataclass(frozen=True)
class Lowered:
    """`lanes` are by the topics that they read; `frame`, if Spark runs the only chain, is its
    steps, and `frame_reason` says why there are none; `reasons` say by node why it does not run in
    batches."""

    lanes: Mapping[str, Lane]
    frame: tuple[FrameStep, ...] | None
    frame_reason: str
    reasons: Mapping[str, str]

    def way(self, node: str) -> Way:
        if self.frame is not None:
            return Way.SPARK
        nodes = (each for lane in self.lanes.values() for each in (lane.source, *lane.nodes, lane.end))
        return Way.ARROW if any(each.name == node for each in nodes) else Way.PYTHON


def lower(topology: Topology, plan: Plan, settings: Settings) -> Lowered:
    """Decide for all nodes."""
    reasons: dict[str, str] = {}
    frame, frame_reason = _frame(topology, plan.stateless, settings) if plan.stateless else (None, "")
    lanes: dict[str, Lane] = {}
    sources = [(sub, source) for sub in (*plan.stateless, *plan.feeding, *plan.stateful) for source in sub.sources]
    for sub, source in sources if frame is None else ():
        lane = _lane(topology, sub, source, settings, reasons)
        if lane is not None and (lane.aggregate is not None or sub not in plan.stateful):
            lanes.update(dict.fromkeys(source.topics, lane))
    _share_aggregates(topology, plan, lanes, reasons, settings)
    return Lowered(lanes, frame, frame_reason, reasons)


def _per_record(source: SourceNode, settings: Settings) -> str | None:
    """Why the records of a source must be handled one by one."""
    if source.timestamp_extractor is not None or settings.timestamp_extractor is not None:
        return "a timestamp extractor is called for each record"
    if settings.processing_handler is not None:
        return "a processing exception handler is called for each record"
    if not settings.production_handler.fails:
        return "a production exception handler is called for each record"
    return None


def _lane(
    topology: Topology, sub: Subtopology, source: SourceNode, settings: Settings, reasons: dict[str, str]
) -> Lane | None:
    reason = _per_record(source, settings)
    nodes: list[ProcessorNode] = []
    at: SourceNode | ProcessorNode = source
    while reason is None:
        children = topology.children(at.name)
        if len(children) != 1:
            reason = f"a batch has one way, and {at.name} has {len(children)} children"
            break
        child = children[0]
        assert not isinstance(child, SourceNode)
        if isinstance(child, SinkNode):
            if isinstance(child.topic, str):
                return Lane(source, tuple(nodes), child)
            reason = f"{child.name} chooses the topic of each record"
        elif type(child.operator) in WAYS:
            nodes.append(child)
            at = child
        else:
            reason = _why_no_parts(topology, sub, child, settings)
            if reason is None:
                return Lane(source, tuple(nodes), child, child)
    reasons.update(dict.fromkeys((node.name for node in sub.nodes), reason))
    return None


def _why_no_parts(topology: Topology, sub: Subtopology, node: ProcessorNode, settings: Settings) -> str | None:
    """Why records of a sub-topology cannot be aggregated in parts before they reach the node."""
    step = node.operator
    if not isinstance(step, AggregateStep):
        return f"{node.name} runs for each record"
    if step.aggregation.merge is None:
        return f"{node.name} calls a Python function; count, sum_of, min_of and max_of merge parts"
    if step.of_table or step.final or not isinstance(step.windows, TimeWindows | None):
        return f"{node.name} needs each record in its order"
    store = topology.stores[step.store or ""]
    if not (step.may_cache and store.caching and settings.cache_bytes > 0) or step.has_history:
        return f"{node.name} forwards every change; caching merges those of a micro-batch"
    if len(sub.sources) != 1 or sub.has_user_processors:
        return f"{node.name} is not alone in its sub-topology"
    if sum(step.store in other.stores for other in sub.processors) > 1:
        return f"{step.store} has several users"
    return None


def _share_aggregates(
    topology: Topology, plan: Plan, lanes: dict[str, Lane], reasons: dict[str, str], settings: Settings
) -> None:
    """Let lanes to a shuffled topic make the parts of the aggregate that reads it, if all records
    of that topic come by lanes and no partitioner chooses their partitions."""
    for sub in plan.stateful:
        for source in sub.sources:
            (topic, *others), children = source.topics, topology.children(source.name)
            if topic not in plan.shuffled or others or len(children) != 1:
                continue
            (node,) = children
            writers = [sink for other in plan.feeding for sink in other.sinks if sink.topic == topic]
            feeding = [other for other in plan.feeding if any(sink.topic == topic for sink in other.sinks)]
            read = {name for other in feeding for each in other.sources for name in each.topics}
            if not isinstance(node, ProcessorNode):
                continue
            reason = _why_no_parts(topology, sub, node, settings) or _per_record(source, settings)
            if reason is None and any(sink.partitioner is not None for sink in writers):
                reason = "a partitioner is called for each record"
            if reason is None and not all(name in lanes for name in read):
                reason = "not all of its records come in batches"
            lanes.pop(topic, None)
            if reason is not None:
                reasons[node.name] = reason
                continue
            for name in read:
                if lanes[name].end in writers:
                    lanes[name] = Lane(lanes[name].source, lanes[name].nodes, lanes[name].end, node)


def _frame(
    topology: Topology, subs: tuple[Subtopology, ...], settings: Settings
) -> tuple[tuple[FrameStep, ...] | None, str]:
    """The steps of Spark for the only chain of a query without state, or why there are none."""
    if len(subs) != 1 or len(subs[0].sources) != 1 or len(subs[0].sinks) != 1:
        return None, "Spark runs one chain from one source to one sink"
    (source,), (sink,) = subs[0].sources, subs[0].sinks
    if not settings.deserialization_handler.fails:
        return None, "a deserialization exception handler is called for each record"
    if reason := _per_record(source, settings):
        return None, reason
    if not isinstance(sink.topic, str) or sink.partitioner is not None or sink.topic in topology.internal_topics:
        return None, f"{sink.name} chooses the topic or partition of each record"
    kinds = _kind(source.key_serde or settings.key_serde), _kind(source.value_serde or settings.value_serde)
    at, steps = topology.children(source.name), [_decoded(kinds)]
    while len(at) == 1 and isinstance(at[0], ProcessorNode):
        node = at[0]
        ways = WAYS.get(type(node.operator))
        made = ways.frame(node.operator, kinds) if ways is not None and ways.frame is not None else None
        if made is None:
            return None, f"{node.name} is not an expression of text"
        steps.append(made[0])
        kinds = made[1]
        at = topology.children(node.name)
    sink_kinds = _kind(sink.key_serde or settings.key_serde), _kind(sink.value_serde or settings.value_serde)
    if at != [sink] or kinds != sink_kinds or None in kinds:
        return None, "Spark reads and writes Serdes.String and Serdes.ByteArray"
    return (*steps, _encoded(sink.topic)), ""


def _kind(serde: Serde) -> Any:
    return TEXT if serde is Serdes.String() else "" if serde is Serdes.ByteArray() else None


def _decoded(kinds: Kinds) -> FrameStep:
    """From the rows of the source to text, and times in milliseconds."""

    def step(frame: DataFrame) -> DataFrame:
        from pyspark.sql import functions as f

        time = f.unix_millis("timestamp")
        missing = f.raise_error(_message("has no timestamp"))
        frame = frame.withColumn("timestamp", f.when(time >= 0, time).otherwise(missing))
        for name, kind in zip(("key", "value"), kinds, strict=True):
            if kind == TEXT:
                text = f.col(name).cast("string")
                invalid = f.raise_error(_message(f"cannot be read: its {name} is not UTF-8"))
                frame = frame.withColumn(name, f.when(f.is_valid_utf8(text) | text.isNull(), text).otherwise(invalid))
        return frame

    return step


def _message(problem: str) -> Column:
    """The message of an error that ends the query, with the place of the record."""
    from pyspark.sql import functions as f

    place = f.concat_ws("", f.lit("StreamsException: "), "topic", f.lit("-"), "partition", f.lit(" offset "), "offset")
    return f.concat(place, f.lit(f" {problem}"))


def _encoded(topic: str) -> FrameStep:
    """To the rows of the sink."""

    def step(frame: DataFrame) -> DataFrame:
        from pyspark.sql import functions as f

        return frame.select(
            f.lit(topic).alias("topic"),
            f.col("key").cast("binary").alias("key"),
            f.col("value").cast("binary").alias("value"),
            f.lit(None).cast("int").alias("partition"),
            f.col("timestamp").alias("sent_at"),
            f.col("headers"),
        )

    return step


# --- `Topology.explain`


def explain(topology: Topology, partitions: Mapping[str, int] | int, config: Mapping[str, Any] | None) -> str:
    """How each node will run, on how many tasks, and why not faster."""
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
