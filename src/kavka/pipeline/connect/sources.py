"""How sources are run: as a query of Spark, as one batch, or batch after batch."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from kavka.pipeline.connect import topic_creation
from kavka.pipeline.connect.api import Context, IncrementalSource, Offsets, Source
from kavka.pipeline.connect.errors import ConnectError
from kavka.pipeline.connect.flow import FAILURES, TIME, Flow, observed
from kavka.pipeline.connect.records import ERROR
from kavka.pipeline.connect.retries import Retries
from kavka.pipeline.connect.settings import seconds
from kavka.pipeline.connect.tasks import Task, trigger_of, writer_options, written
from kavka.pipeline.spark.errors import PipelineError
from kavka.pipeline.spark.new_topics import Rule, make, to_json

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

log = logging.getLogger(__name__)


def run_source(task: Task, context: Context, source: Source, retries: Retries) -> None:
    flow = _flow(task, context)
    interval = seconds(context["trigger.interval"])
    while True:
        frame = retries.call(f"{task.name} reads", lambda: source.read(context))
        if frame.isStreaming:
            _stream(task, context, flow, frame)
            return
        _write_batch(task, context, flow, frame, None)
        if context.available_now or interval is None or task.pause(interval):
            return


def _flow(task: Task, context: Context) -> Flow:
    return Flow.of(task.name, task.settings, context.config, task.worker.properties, False, task.worker.declared)


def _topic(context: Context) -> str | None:
    found = context.config.get("topic")
    return str(found) if found else None


def _prepared(task: Task, context: Context, flow: Flow, frame: DataFrame) -> tuple[DataFrame, dict[str, str]]:
    """(rows that may have failed, options of the writer)."""
    rows, topic = flow.encoded(frame, _topic(context))
    if topic is None and _topic(context) is None and "topic" not in {name.lower() for name in frame.columns}:
        raise ConnectError(f"{task.cls.__name__} gives records without a topic, and has no option topic")
    options = _options(task, context, topic)
    if TIME in rows.columns:
        options["timestampColumn"] = TIME
    return rows, options


def _options(task: Task, context: Context, topic: str | None) -> dict[str, str]:
    """Of the sink `kavka`. `topic`: of all records, if it is one."""
    options = writer_options(context, context.exactly_once)
    rules = topic_creation.rules(task.settings, task.worker.properties)[0]
    if topic is not None:
        options["topic"] = topic
        _create(task, context, rules, topic)
        task.on_topics({topic})
    elif rules:
        options["newTopics"] = to_json(rules)
    return options


def _create(task: Task, context: Context, rules: Sequence[Rule], topic: str) -> None:
    """Once for each start of the task."""
    if not rules or topic in task.made:
        return
    try:
        make(context.client, rules, [topic])
    except PipelineError as error:
        raise ConnectError(str(error)) from None
    task.made.add(topic)


def _needs_look(rows: DataFrame) -> bool:
    return ERROR in rows.columns or "topic" in rows.columns


def _stream(task: Task, context: Context, flow: Flow, frame: DataFrame) -> None:
    rows, options = _prepared(task, context, flow, frame)
    if _needs_look(rows):
        rows = observed(rows, FAILURES)
    rows = flow.without_failures(rows)

    def start() -> Any:
        writer = rows.writeStream.format("kavka").options(**options).outputMode("append")
        writer = writer.option("checkpointLocation", f"{context.checkpoint}/query").queryName(f"connect-{task.name}")
        return writer.trigger(**trigger_of(context)).start()

    def heard(progress: Any) -> None:
        metrics = progress.observedMetrics or {}
        if FAILURES in metrics:
            tell(task, context, metrics[FAILURES].asDict())

    task.follow(start, heard)


def tell(task: Task, context: Context, seen: dict[str, Any]) -> None:
    if seen.get("topics"):
        task.on_topics(set(seen["topics"]))
    if seen.get("failed") and context["errors.log.enable"]:
        shown = f": {seen['example']}" if seen.get("example") else ""
        log.error("Connector %s: %d records failed and are left out%s", task.name, seen["failed"], shown)


def _write_batch(task: Task, context: Context, flow: Flow, frame: DataFrame, named: dict[str, str] | None) -> None:
    """`named`: which batch of which query it is, where it may be written again."""
    from pyspark.sql import Observation

    rows, options = _prepared(task, context, flow, frame)
    observation = Observation() if _needs_look(rows) else None
    if observation is not None:
        rows = observed(rows, observation)
    _cancelable(task, context)
    written(context, flow.without_failures(rows), {**options, **(named or {})})
    if observation is not None:
        tell(task, context, observation.get)


def _cancelable(task: Task, context: Context) -> None:
    """What this thread has Spark do from now on ends when the task is stopped."""
    spark, group = context.spark.sparkContext, f"connect-{task.name}"
    spark.setJobGroup(group, f"connector {task.name}", interruptOnCancel=True)
    task.cancel = lambda: spark.cancelJobGroup(group)


# --- batch after batch


def run_incremental(task: Task, context: Context, source: IncrementalSource, retries: Retries) -> None:
    """Offsets are kept after each batch. With exactly once the plan of a batch is kept before it: when it is found
    again after a crash, the same batch is written under the same number, which changes nothing where it was whole."""
    flow = _flow(task, context)
    store = task.worker.offsets
    field = source.partition_field
    run = task.new_run()
    interval = seconds(context["trigger.interval"])
    wait = source.poll_interval if interval is None else interval
    start = store.offsets(task.name, field)
    plan = store.plan(task.name) if context.exactly_once else None
    number = 0 if plan is None else plan.number + 1
    again = plan is not None and not plan.done
    while not task.stopping.is_set():
        begun = time.monotonic()
        if again and plan is not None:
            number, start, end = plan.number, plan.start, plan.end
        else:
            found = retries.call(f"{task.name} looks for more", lambda at=start: source.next(context, at))  # type: ignore[misc]
            if found is None:
                if context.available_now or task.pause(wait):
                    return
                continue
            end = found
        named = None
        if context.exactly_once:
            if not again:
                store.put_plan(task.name, number, start, end, done=False)
            named = {"queryId": f"{store.identity(task.name)}", "runId": run, "batchId": str(number)}
        again = False
        _one(task, context, source, retries, flow, start, end, named)
        store.put(task.name, field, start, end)
        if context.exactly_once:
            store.put_plan(task.name, number, start, end, done=True)
            number += 1
        start = end
        if interval is not None and task.pause(max(0.0, interval - (time.monotonic() - begun))):
            return


def _one(
    task: Task,
    context: Context,
    source: IncrementalSource,
    retries: Retries,
    flow: Flow,
    start: Offsets,
    end: Offsets,
    named: dict[str, str] | None,
) -> None:
    def work() -> None:
        topic = _topic(context)
        writer = source.writer(context, start, end) if topic is not None and flow.keeps_text else None
        if writer is not None:
            options = _options(task, context, topic)
            _cancelable(task, context)
            writer.options(**options, **(named or {})).mode("append").save()
            return
        _write_batch(task, context, flow, source.read_range(context, start, end), named)

    retries.call(f"{task.name} reads", work)
