"""`kavka pipeline`: run, list and stop streams jobs.

A job is a Python file with `build()`, which returns a topology, and `CONFIG`. While a job runs,
this tool records its progress with `kavka.jobs`.
"""

from __future__ import annotations

import os
import runpy
import signal
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kavka import jobs
from kavka.cli.options import Arguments, Command, Option, Positional
from kavka.cli.output import at_terminal, print_json, print_table
from kavka.cli.tool import ToolError, run

if TYPE_CHECKING:
    from kavka.streams import KafkaStreams

_JOB = (Positional("application.id", "The job; by default all jobs.", required=False),)

COMMAND = Command(
    "pipeline",
    "Run streams jobs on Spark; list and stop the jobs on this machine.",
    subcommands=(
        Command(
            "run",
            "Run a job until it is stopped: a Python file with build() and CONFIG.",
            (
                Option("bootstrap-server", "Overrides bootstrap.servers of the job.", "host:port"),
                Option("master", "Overrides Spark's master; by default all cores of this machine.", "master"),
                Option("config", "Overrides a setting of the job.", "name=value", repeated=True),
                Option("describe", "Print the topology and exit."),
            ),
            positionals=(Positional("job.py", "The job."),),
            examples=("kavka pipeline run examples/word_count.py",),
        ),
        Command("status", "List the running jobs of this machine.", (Option("json", "Print JSON."),)),
        Command("stop", "Stop a job. Its next start completes the current batch.", positionals=_JOB),
    ),
    examples=("kavka pipeline run examples/word_count.py", "kavka pipeline status", "kavka pipeline stop wordCountApp"),
)


def main(argv: list[str]) -> int:
    return run(COMMAND, argv, _body)


def _body(args: Arguments) -> int:
    match args.subcommand:
        case "run":
            return _run(args)
        case "status":
            return _status(args)
    return _stop(args)


def _run(args: Arguments) -> int:
    job = Path(args.positionals[0])
    if not job.is_file():
        raise ToolError(f"there is no file {job}")
    topology, config = _load(job)
    config.update(setting.split("=", 1) for setting in args["config"] or () if "=" in setting)
    if args["bootstrap-server"]:
        config["bootstrap.servers"] = args["bootstrap-server"]
    if args["master"]:
        config["spark.master"] = args["master"]
    if "describe" in args:
        print(topology.describe(), end="")
        return 0
    from kavka.streams import KafkaStreams, StreamsException

    stop = threading.Event()
    try:
        streams = KafkaStreams(topology, config)
        # The handler only sets a flag: a signal may arrive during a call to Spark, whose connection
        # is not reentrant.
        signal.signal(signal.SIGTERM, lambda *_: stop.set())
        name = config["application.id"]
        previous_record = jobs.read(name)
        if previous_record is not None and previous_record["running"]:
            raise ToolError(f"{name} is already running: kavka pipeline stop {name}")
        print(f"starting {name} on Spark", file=sys.stderr, flush=True)
        streams.start()
        # Replace PySpark's handler, which cancels running work and raises KeyboardInterrupt.
        signal.signal(signal.SIGINT, lambda *_: stop.set())
    except (StreamsException, jobs.JobError) as error:
        raise ToolError(str(error)) from None
    metadata: dict[str, Any] = {"job": str(job), "arguments": _arguments(args), "folder": os.getcwd()}
    metadata["started"] = int(time.time() * 1000)
    record = _follow(streams, name, metadata, stop)
    failure = streams.exception()
    if failure is None:
        jobs.remove(name)
        return 0
    jobs.write(name, {**record, "state": jobs.FAILED, "error": str(failure)[: jobs.MAX_ERROR_LENGTH]})
    raise ToolError(str(failure))


def _arguments(args: Arguments) -> list[str]:
    """Return the arguments that start this job again."""
    options = [f"--{name}={args[name]}" for name in ("bootstrap-server", "master") if args[name]]
    return [*args.positionals, *options, *(f"--config={setting}" for setting in args["config"] or ())]


def _load(job: Path) -> tuple[Any, dict[str, Any]]:
    """Run the file of a job and return its topology and settings. Raise ToolError if the file does
    not define them."""
    sys.path.insert(0, str(job.resolve().parent))
    names = runpy.run_path(str(job), run_name="kavka_job")
    if "build" not in names or "CONFIG" not in names:
        raise ToolError(f"{job} must define build(), which returns the topology, and CONFIG")
    return names["build"](), dict(names["CONFIG"])


def _follow(streams: KafkaStreams, name: str, metadata: dict[str, Any], stop: threading.Event) -> dict[str, Any]:
    """Record the progress of a job, and show it on a terminal, until the job ends or `stop` is set.
    Return the last record."""
    is_terminal = at_terminal(sys.stderr)
    last_record: dict[str, Any] | None = None
    while not streams.wait(0.5):
        if stop.is_set():
            streams.close()
            continue
        progress = streams.query.lastProgress if streams.query is not None else None
        record = _progress_record(progress)
        if record != last_record:
            jobs.write(name, {**metadata, "state": streams.state(), **record})
            last_record = record
            if is_terminal:
                line = f"batch {record['batch']}  {record['rows_per_second']:,.0f} rows/s  lag {record['lag']:,}  "
                print(f"\r{line}state {record['state_rows']:,} rows\x1b[K", end="", file=sys.stderr, flush=True)
    if is_terminal and last_record is not None:
        print(file=sys.stderr)
    return {**metadata, **(last_record or {})}


def _progress_record(progress: Any) -> dict[str, Any]:
    if progress is None:
        return {"batch": 0, "rows_per_second": 0.0, "lag": 0, "state_rows": 0}
    return {
        "batch": progress.batchId,
        "rows_per_second": _record_count(progress) / max(0.001, (progress.batchDuration or 0) / 1000),
        "lag": sum(_lag(source) for source in progress.sources),
        "state_rows": sum(operator.numRowsTotal for operator in progress.stateOperators),
    }


def _record_count(progress: Any) -> int:
    """Return the number of records in the batch, from the offsets. Spark counts rows, and a row may
    contain many records."""
    return sum(sum(jobs.offsets_between(s.startOffset, s.endOffset).values()) for s in progress.sources)


def _lag(source: Any) -> int:
    """Return the number of records after the batch; 0 if the source reports no latest offsets."""
    return sum(jobs.offsets_between(source.endOffset, source.latestOffset).values())


def _status(args: Arguments) -> int:
    running_jobs = [job for job in _all_jobs() if job["running"]]
    if args["json"]:
        print_json(running_jobs)
        return 0
    columns = ("application.id", "pid", "state", "batch", "rows_per_second", "lag", "state_rows")
    print_table(
        [name.upper() for name in columns], [[str(job.get(name, "")) for name in columns] for job in running_jobs]
    )
    return 0


def _stop(args: Arguments) -> int:
    names = args.positionals or [job["application.id"] for job in _all_jobs() if job["running"]]
    for name in names:
        try:
            jobs.stop(name)
        except jobs.JobError as error:
            raise ToolError(str(error)) from None
        print(f"stopped {name}")
    return 0


def _all_jobs() -> list[dict[str, Any]]:
    try:
        return jobs.all_jobs()
    except jobs.JobError as error:
        raise ToolError(str(error)) from None
