"""`kavka pipeline`: run a streams job, look at it, stop it.

A job is a Python file with `streams()`, which gives a KafkaStreams, or with `build()` and `CONFIG`. While it runs, it
leaves notes of its progress; `kavka.jobs` says what is in them.
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

_JOB = (Positional("application.id", "Of the job; all of them without.", required=False, completes=""),)

COMMAND = Command(
    "pipeline",
    "Run streams jobs on Spark, and look at those that run on this machine.",
    subcommands=(
        Command(
            "run",
            "Run a job until it is stopped: a Python file with streams(), or with build() and CONFIG.",
            (
                Option("bootstrap-server", "In place of the job's own.", "host:port"),
                Option("master", "Spark's master; this machine with all its cores unless the job says.", "master"),
                Option("config", "A setting in place of the job's own.", "name=value", repeated=True),
                Option("describe", "Print the topology and end."),
            ),
            positionals=(Positional("job.py", "The job."),),
            examples=("kavka pipeline run examples/word_count.py",),
        ),
        Command("status", "Show the jobs that run on this machine.", (Option("json", "Print JSON."),)),
        Command("stop", "Stop a job: what it has begun is finished by its next start.", positionals=_JOB),
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
    topology, config = _loaded(job)
    config.update(one.split("=", 1) for one in args["config"] or () if "=" in one)
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
        # No more than a note: it may come in the middle of a call to Spark, whose connection then takes no other.
        signal.signal(signal.SIGTERM, lambda *_: stop.set())
        name = config["application.id"]
        before = jobs.read(name)
        if before is not None and before["running"]:
            raise ToolError(f"{name} runs already: kavka pipeline stop {name}")
        print(f"{name} starts on Spark", file=sys.stderr, flush=True)
        streams.start()
        # In place of PySpark's own handler, which cancels what runs and then interrupts us wherever we are.
        signal.signal(signal.SIGINT, lambda *_: stop.set())
    except (StreamsException, jobs.JobError) as error:
        raise ToolError(str(error)) from None
    about: dict[str, Any] = {"job": str(job), "arguments": _arguments(args), "folder": os.getcwd()}
    about["started"] = int(time.time() * 1000)
    told = _follow(streams, name, about, stop)
    ended = streams.exception()
    if ended is None:
        jobs.forget(name)
        return 0
    jobs.write(name, {**told, "state": jobs.FAILED, "error": str(ended)[: jobs.MOST_OF_AN_ERROR]})
    raise ToolError(str(ended))


def _arguments(args: Arguments) -> list[str]:
    """What starts this job again."""
    options = [f"--{name}={args[name]}" for name in ("bootstrap-server", "master") if args[name]]
    return [*args.positionals, *options, *(f"--config={one}" for one in args["config"] or ())]


def _loaded(job: Path) -> tuple[Any, dict[str, Any]]:
    sys.path.insert(0, str(job.resolve().parent))
    found = runpy.run_path(str(job), run_name="kavka_job")
    if "build" not in found or "CONFIG" not in found:
        raise ToolError(f"{job} has no build() and CONFIG: a job gives its topology and its settings by these names")
    return found["build"](), dict(found["CONFIG"])


def _follow(streams: KafkaStreams, name: str, about: dict[str, Any], stop: threading.Event) -> dict[str, Any]:
    """Until the job ends, or is to stop: a line of progress on a terminal, and the same for `status`. Returns what was
    told last."""
    terminal = at_terminal(sys.stderr)
    last: dict[str, Any] | None = None
    while not streams.wait(0.5):
        if stop.is_set():
            streams.close()
            continue
        progress = streams.query.lastProgress if streams.query is not None else None
        told = _told(progress)
        if told != last:
            jobs.write(name, {**about, "state": streams.state(), **told})
            last = told
            if terminal:
                line = f"batch {told['batch']}  {told['rows_per_second']:,.0f} rows/s  lag {told['lag']:,}  "
                print(f"\r{line}state {told['state_rows']:,} rows\x1b[K", end="", file=sys.stderr, flush=True)
    if terminal and last is not None:
        print(file=sys.stderr)
    return {**about, **(last or {})}


def _told(progress: Any) -> dict[str, Any]:
    if progress is None:
        return {"batch": 0, "rows_per_second": 0.0, "lag": 0, "state_rows": 0}
    return {
        "batch": progress.batchId,
        "rows_per_second": _records(progress) / max(0.001, (progress.batchDuration or 0) / 1000),
        "lag": sum(_lag(one) for one in progress.sources),
        "state_rows": sum(one.numRowsTotal for one in progress.stateOperators),
    }


def _records(progress: Any) -> int:
    """How many offsets the batch went through: what Spark counts as rows may be many records each."""
    return sum(sum(jobs.offsets_between(one.startOffset, one.endOffset).values()) for one in progress.sources)


def _lag(source: Any) -> int:
    """How many records are waiting, where the source says up to which offsets there are some."""
    return sum(jobs.offsets_between(source.endOffset, source.latestOffset).values())


def _status(args: Arguments) -> int:
    running = [job for job in _all_jobs() if job["running"]]
    if args["json"]:
        print_json(running)
        return 0
    columns = ("application.id", "pid", "state", "batch", "rows_per_second", "lag", "state_rows")
    print_table([name.upper() for name in columns], [[str(job.get(name, "")) for name in columns] for job in running])
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
