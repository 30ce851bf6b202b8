"""Runs sources: as a Spark query, as a single batch, or as a loop of batches."""

from __future__ import annotations

import logging
import time
import uuid
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from kavka.pipeline.connect import topic_creation
from kavka.pipeline.connect.api import Context, IncrementalSource, Offsets, Source
from kavka.pipeline.connect.errors import ConnectError
from kavka.pipeline.connect.flow import OBSERVATION, TIME, Flow, observe
from kavka.pipeline.connect.records import ERROR
from kavka.pipeline.connect.retries import Retries
from kavka.pipeline.connect.settings import seconds
from kavka.pipeline.connect.tasks import Task, trigger_of, write_frame, writer_options
from kavka.pipeline.spark.errors import PipelineError
from kavka.pipeline.spark.files import HadoopPath
from kavka.pipeline.spark.new_topics import Rule, create_topics, to_json

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

logger = logging.getLogger(__name__)


def run_source(task: Task, context: Context, source: Source, retries: Retries) -> None:
    flow = _flow(task, context)
    interval = seconds(context["trigger.interval"])
    task.set_count(source.tasks(context), context)
    while True:
        frame = retries.call(f"Reading {task.name}", lambda: source.read(context))
        if frame.isStreaming:
            _stream(task, context, flow, frame)
            return
        _write_batch(task, context, flow, [frame], None, task.count)
        if context.available_now or interval is None or task.pause(interval):
            return


def _flow(task: Task, context: Context) -> Flow:
    return Flow.of(task.name, task.settings, context.config, task.worker.properties, False, task.worker.declared)


def _topic(context: Context) -> str | None:
    topic = context.config.get("topic")
    return str(topic) if topic else None


def _prepared(
    task: Task, context: Context, flow: Flow, frames: Sequence[DataFrame]
) -> tuple[DataFrame, dict[str, str]]:
    """Returns (the encoded rows, with an error if they failed; the options of the writer). Raises
    ConnectError if records have no topic."""
    rows, topic = flow.encode(frames[0], _topic(context))
    if topic is None and _topic(context) is None and "topic" not in {name.lower() for name in frames[0].columns}:
        raise ConnectError(f"{task.cls.__name__} returns records without a topic and has no option topic")
    for frame in frames[1:]:
        # Encoded rows have the same columns, whatever the columns of the records are.
        rows = rows.unionByName(flow.encode(frame, _topic(context))[0])
    options = _options(task, context, topic)
    if TIME in rows.columns:
        options["timestampColumn"] = TIME
    return rows, options


def _options(task: Task, context: Context, topic: str | None) -> dict[str, str]:
    """Creates the topic if the rules say so, and returns the options of the Spark sink `kavka`.
    `topic` is the topic of all records; None if they have different topics."""
    options = writer_options(context)
    rules = topic_creation.rules(task.settings, task.worker.properties)[0]
    if topic is not None:
        options["topic"] = topic
        _create(task, context, rules, topic)
        task.on_topics({topic})
    elif rules:
        options["newTopics"] = to_json(rules)
    return options


def _create(task: Task, context: Context, rules: Sequence[Rule], topic: str) -> None:
    """Creates the topic, at most once for each start of the task."""
    if not rules or topic in task.created_topics:
        return
    try:
        create_topics(context.client, rules, [topic])
    except PipelineError as error:
        raise ConnectError(str(error)) from None
    task.created_topics.add(topic)


def _is_observed(rows: DataFrame) -> bool:
    return ERROR in rows.columns or "topic" in rows.columns


def _stream(task: Task, context: Context, flow: Flow, frame: DataFrame) -> None:
    tasks = _tasks_of_stream(task, context)
    rows, options = _prepared(task, context, flow, [frame if tasks is None else frame.coalesce(tasks)])
    if _is_observed(rows):
        rows = observe(rows, OBSERVATION)
    rows = flow.without_failures(rows)

    def start() -> Any:
        writer = rows.writeStream.format("kavka").options(**options).outputMode("append")
        writer = writer.option("checkpointLocation", f"{context.checkpoint}/query").queryName(f"connect-{task.name}")
        return writer.trigger(**trigger_of(context)).start()

    task.run_query(start, lambda progress: report_progress(task, context, progress))


def report_progress(task: Task, context: Context, progress: Any) -> None:
    task.measures.add_progress(progress)
    metrics = (progress.observedMetrics or {}).get(OBSERVATION)
    if metrics is not None:
        _report_metrics(task, context, metrics.asDict())


def _report_metrics(task: Task, context: Context, metrics: dict[str, Any]) -> None:
    if metrics.get("topics"):
        task.on_topics(set(metrics["topics"]))
    task.measures.failed += metrics.get("failed") or 0
    if metrics.get("failed") and context["errors.log.enable"]:
        example = f": {metrics['example']}" if metrics.get("example") else ""
        logger.error("Connector %s: %d records failed and were dropped%s", task.name, metrics["failed"], example)


def _write_batch(
    task: Task,
    context: Context,
    flow: Flow,
    frames: Sequence[DataFrame],
    batch_options: dict[str, str] | None,
    tasks: int | None,
) -> None:
    """Writes a batch with at most `tasks` tasks, None for any number. `batch_options` identify the
    batch and its query, if the batch may be written again."""
    from pyspark.sql import Observation

    rows, options = _prepared(task, context, flow, frames)
    if tasks is not None:
        rows = rows.coalesce(tasks)
    observation = Observation() if _is_observed(rows) else None
    if observation is not None:
        rows = observe(rows, observation)
    _make_cancelable(task, context)
    write_frame(flow.without_failures(rows), {**options, **(batch_options or {})})
    if observation is not None:
        _report_metrics(task, context, observation.get)


def _tasks_of_stream(task: Task, context: Context) -> int | None:
    """Returns the number of tasks of a query, and stores it in the checkpoint. A micro-batch that
    was not completed must be divided as before, so a new number is used only if there is none. None
    means that an earlier version has started the micro-batch: it did not limit the tasks."""
    folder = HadoopPath(f"{context.checkpoint}/query", lambda: context.spark)
    file = folder / "tasks"
    try:
        stored = int(file.read_text())
    except (FileNotFoundError, ValueError):
        stored = None
    started, completed = (_last_batch(folder / name) for name in ("offsets", "commits"))
    if started > completed and stored != task.count:
        logger.warning("Connector %s uses tasks.max after its next start: it completes a batch first", task.name)
        return stored
    file.write_text(str(task.count))
    return task.count


def _last_batch(folder: HadoopPath) -> int:
    try:
        return max((int(file.name) for file in folder.iterdir() if file.name.isdigit()), default=-1)
    except FileNotFoundError:
        return -1


def _make_cancelable(task: Task, context: Context) -> None:
    """Lets `Task.stop` cancel the Spark jobs of this thread."""
    spark, group = context.spark.sparkContext, f"connect-{task.name}"
    spark.setJobGroup(group, f"connector {task.name}", interruptOnCancel=True)
    task.cancel = lambda: spark.cancelJobGroup(group)


# --- a loop of batches


def run_incremental(task: Task, context: Context, source: IncrementalSource, retries: Retries) -> None:
    """Processes batches until the task stops, and stores the offsets after each batch. For
    exactly-once delivery it stores the plan of a batch before the batch. After a crash it executes
    the stored plan again with the same batch number, which has no effect if the batch was
    complete."""
    flow = _flow(task, context)
    store = task.worker.offsets
    field = source.partition_field
    run_id = uuid.uuid4().hex
    interval = seconds(context["trigger.interval"])
    wait = source.poll_interval if interval is None else interval
    start = store.offsets(task.name, field)
    plan = store.plan(task.name) if context.exactly_once else None
    batch_id = 0 if plan is None else plan.number + 1
    is_repeat = plan is not None and not plan.done
    task.set_count(source.tasks(context), context)
    while not task.stopping.is_set():
        started = time.monotonic()
        if is_repeat and plan is not None:
            batch_id, start, end, tasks = plan.number, plan.start, plan.end, plan.tasks
        else:
            next_end = retries.call(f"Polling {task.name}", lambda offsets=start: source.next(context, offsets))  # type: ignore[misc]
            if next_end is None:
                if context.available_now or task.pause(wait):
                    return
                continue
            end, tasks = next_end, source.tasks(context)
            task.set_count(tasks, context)
        batch_options = None
        if context.exactly_once:
            if not is_repeat:
                store.put_plan(task.name, batch_id, start, end, done=False, tasks=tasks)
            batch_options = {"queryId": store.identity(task.name), "runId": run_id, "batchId": str(batch_id)}
        is_repeat = False
        _process_batch(task, context, source, retries, flow, start, end, batch_options, tasks)
        store.put(task.name, field, start, end)
        if context.exactly_once:
            store.put_plan(task.name, batch_id, start, end, done=True, tasks=tasks)
            batch_id += 1
        start = end
        if interval is not None and task.pause(max(0.0, interval - (time.monotonic() - started))):
            return


def _process_batch(
    task: Task,
    context: Context,
    source: IncrementalSource,
    retries: Retries,
    flow: Flow,
    start: Offsets,
    end: Offsets,
    batch_options: dict[str, str] | None,
    tasks: int | None,
) -> None:
    """Writes a batch. `tasks` is None for a batch that an earlier version has started."""
    if tasks is not None:
        context = replace(context, config={**context.config, "tasks.max": tasks})

    def work() -> None:
        topic = _topic(context)
        writer = source.writer(context, start, end) if topic is not None and flow.keeps_text else None
        if writer is not None:
            options = _options(task, context, topic)
            _make_cancelable(task, context)
            writer.options(**options, **(batch_options or {})).mode("append").save()
            return
        frames = source.read_range(context, start, end)
        frames = frames if isinstance(frames, Sequence) else [frames]
        _write_batch(task, context, flow, frames, batch_options, tasks)

    retries.call(f"Reading {task.name}", work)
