"""Sub-topologies that Spark works out by itself: from topics through steps that are all expressions
to one topic.

What must be able to call a handler of the user's for a record, or a timestamp extractor, stays in
Python.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from kavka.pipeline.streams import nodes
from kavka.pipeline.streams.expressions import TEXT, TRUTH, Expression, Listed
from kavka.pipeline.streams.plan import Plan
from kavka.pipeline.streams.serdes import Serde, Serdes
from kavka.pipeline.streams.settings import Settings, fails
from kavka.pipeline.streams.topology import ProcessorNode, SinkNode, Subtopology, Topology

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

_FILTER, _KEY, _VALUE, _VALUES = "filter", "key", "value", "values"


class Chain(NamedTuple):
    """What is done to records one after the other, and the topic they go to. `kinds` are those of
    the source's keys and values: text, or "" for bytes that nobody looks at."""

    kinds: tuple[str, str]
    steps: tuple[tuple[str, Expression], ...]
    topic: str


def native_sources(topology: Topology, plan: Plan, settings: Settings) -> dict[int, list[str]]:
    """The sub-topologies that Spark can do by itself, and the topics that each reads."""
    return {
        sub.id: sorted(source.told() for source in sub.sources)
        for sub in plan.stateless
        if chain_of(topology, sub, settings) is not None
    }


def chain_of(topology: Topology, sub: Subtopology, settings: Settings) -> Chain | None:
    """How Spark can do a sub-topology by itself; None if it cannot."""
    if len(sub.sources) != 1 or len(sub.sinks) != 1 or sub.stores or sub.global_:
        return None
    source, sink = sub.sources[0], sub.sinks[0]
    handlers = settings.deserialization_handler, settings.production_handler
    if source.timestamp_extractor or settings.timestamp_extractor or not all(map(fails, handlers)):
        return None
    if not isinstance(sink.topic, str) or sink.partitioner is not None or sink.topic in topology.internal_topics:
        return None
    kinds = _kind(source.key_serde or settings.key_serde), _kind(source.value_serde or settings.value_serde)
    steps: list[tuple[str, Expression]] = []
    at: Any = source
    while not isinstance(at, SinkNode):
        below = topology.children(at.name)
        if len(below) != 1 or not isinstance(below[0], ProcessorNode | SinkNode):
            return None
        at = below[0]
        if isinstance(at, ProcessorNode):
            step = _step(at)
            if step is None:
                return None
            steps += step
    if None in kinds or not steps:
        return None
    found = Chain((kinds[0] or "", kinds[1] or ""), tuple(steps), sink.topic)
    wanted = _kind(sink.key_serde or settings.key_serde), _kind(sink.value_serde or settings.value_serde)
    return found if _result(found) == wanted else None


def _kind(serde: Serde) -> str | None:
    return TEXT if serde is Serdes.String() else "" if serde is Serdes.ByteArray() else None


def _step(node: ProcessorNode) -> list[tuple[str, Expression]] | None:
    supplier: Any = node.supplier
    if supplier is nodes.PassThrough:
        return []
    if not isinstance(supplier, partial) or not supplier.args:
        return None
    function = supplier.args[0]
    if isinstance(function, Listed) and supplier.func is nodes.FlatMapValues:
        return [(_VALUES, function.expression)]
    if not isinstance(function, Expression):
        return None
    if supplier.func is nodes.Filter and function.kind == TRUTH:
        # What is neither true nor false is left out by filter, and stays with filter_not.
        return [(_FILTER, ~(function & ~function.is_null()) if supplier.args[1] else function)]
    if supplier.func is nodes.SelectKey and function.kind == TEXT:
        return [(_KEY, function)]
    if supplier.func is nodes.MapValues and function.kind == TEXT:
        return [(_VALUE, function)]
    return None


def _result(chain: Chain) -> tuple[str, str] | None:
    """The kinds of what is written; None if a step asks bytes for what only text has."""
    key, value = chain.kinds
    for kind, expression in chain.steps:
        asked = _asked(expression)
        if ("key" in asked and key != TEXT) or ("value" in asked and value != TEXT):
            return None
        key, value = (TEXT if kind == _KEY else key), (TEXT if kind in (_VALUE, _VALUES) else value)
    return key, value


def _asked(expression: Any) -> set[str]:
    if not isinstance(expression, Expression):
        return set()
    own = {expression.name} & {"key", "value"}
    return own.union(*(_asked(one) for one in expression.inputs))


def native_frame(source: DataFrame | None, chain: Chain) -> DataFrame:
    """The sink's rows, of the source's."""
    from pyspark.sql import functions as f

    assert source is not None, "a chain has a source"
    frame = source.where(f.col("timestamp").isNotNull())
    for name, kind in zip(("key", "value"), chain.kinds, strict=True):
        if kind == TEXT:
            frame = frame.withColumn(name, _read(name))
    for kind, expression in chain.steps:
        column = to_column(expression)
        if kind == _FILTER:
            frame = frame.where(column)
        else:
            name = "key" if kind == _KEY else "value"
            frame = frame.withColumn(name, f.explode(column) if kind == _VALUES else column)
    return frame.select(
        f.lit(chain.topic).alias("topic"),
        f.col("key").cast("binary").alias("key"),
        f.col("value").cast("binary").alias("value"),
        f.lit(None).cast("int").alias("partition"),
        f.unix_millis("timestamp").alias("sent_at"),
        f.col("headers"),
    )


def _read(name: str) -> Column:
    """Text of bytes; bytes that are no text end the query, as the handler says."""
    from pyspark.sql import functions as f

    text = f.col(name).cast("string")
    what = f.concat_ws("", f.lit("StreamsException: "), "topic", f.lit("-"), "partition", f.lit(" offset "), "offset")
    told = f.concat(what, f.lit(f" cannot be read: its {name} is not UTF-8"))
    return f.when(f.is_valid_utf8(text) | text.isNull(), text).otherwise(f.raise_error(told))


def _pattern(text: str) -> str:
    """A regular expression of Java's that matches this text alone: after a backslash, what is
    neither letter nor digit means itself."""
    return "".join(f"\\{one}" if one.isascii() and not one.isalnum() else one for one in text)


def to_column(expression: Expression) -> Column:
    from pyspark.sql import functions as f

    if expression.name == "constant":
        return f.lit(expression.inputs[0])
    if expression.name in ("key", "value"):
        return f.col(expression.name)
    given = [to_column(one) for one in expression.inputs]
    translated: dict[str, Callable[..., Column]] = {
        "lower": f.lower,
        "upper": f.upper,
        "trim": f.trim,
        "length": f.length,
        "concat": f.concat,
        "split": lambda text, _: f.split(text, _pattern(expression.inputs[1].inputs[0]), -1),
        "contains": f.contains,
        "startswith": f.startswith,
        "endswith": f.endswith,
        "eq": lambda one, two: one == two,
        "lt": lambda one, two: one < two,
        "le": lambda one, two: one <= two,
        "not": lambda one: ~one,
        "and": lambda one, two: one & two,
        "or": lambda one, two: one | two,
        "is_null": f.isnull,
    }
    return translated[expression.name](*given)
