"""`kavka pipeline`: run, list and stop streams jobs, and pack the environment of executors.

A job is a Python file with `build()`, which returns a topology, and `CONFIG`. While a job runs,
this tool records its status with `kavka.jobs` on this machine, and in a topic for others
(`job_status.py`), and its output in a log (`job_log.py`).
"""

from __future__ import annotations

import logging
import os
import runpy
import signal
import sys
import threading
import time
import traceback
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from kavka import jobs
from kavka.cli import job_status
from kavka.cli.connecting import read_properties
from kavka.cli.job_log import print_log, recorded_output
from kavka.cli.options import Arguments, Command, Option, Positional, UsageError
from kavka.cli.output import at_terminal, print_json, print_table
from kavka.cli.tool import ToolError, run
from kavka.common.errors import KafkaError
from kavka.common.times import milliseconds_of

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
                Option(
                    "master",
                    "Overrides Spark's master: local[*] (the default: all cores of this machine), spark://host:port, "
                    "yarn or k8s://host:port.",
                    "master",
                ),
                Option("config", "Overrides a setting of the job.", "name=value", repeated=True),
                Option("conf", "A setting of Spark.", "spark.name=value", repeated=True),
                Option(
                    "archive",
                    "The environment of the executors, made by `kavka pipeline pack`.",
                    "file",
                ),
                Option(
                    "py-files",
                    "Modules for the executors: .py, .zip or .whl files, or folders. Modules that the job imports "
                    "from its own folder are sent without this option.",
                    "file",
                    repeated=True,
                ),
                Option("package", "Maven coordinates of a library for Spark.", "group:artifact:version", repeated=True),
                Option("jars", "A jar for Spark.", "file", repeated=True),
                Option("available-now", "Process the records that exist now, then exit."),
                Option(
                    "from-timestamp",
                    "Start a new job at the records of this time: YYYY-MM-DDThh:mm:ss, or milliseconds since 1970.",
                    "time",
                ),
                Option("clean-up", "Delete the state of the job first."),
                Option("describe", "Print the topology and exit."),
                Option("verbose", "Print the log of Spark and the stack trace of an error in the job."),
            ),
            positionals=(Positional("job.py", "The job."),),
            examples=(
                "kavka pipeline run examples/word_count.py",
                "kavka pipeline run job.py --master spark://host:7077 --archive environment.tar.gz "
                "--config state.dir=s3a://bucket/streams",
            ),
        ),
        Command(
            "pack",
            "Write an archive with Kavka and the libraries that it needs on the executors of a Spark cluster.",
            (
                Option("output", "The file. Default: environment.tar.gz.", "file"),
                Option("include", "Another installed distribution that jobs need.", "name", repeated=True),
            ),
            examples=("kavka pipeline pack", "kavka pipeline pack --include scikit-learn"),
        ),
        Command(
            "status",
            "List the running jobs of this machine, and with --bootstrap-server of the machines that use the cluster.",
            (
                Option("bootstrap-server", "The cluster of the jobs.", "host:port"),
                Option("command-config", "A file with settings of the clients.", "file", completes="file"),
                Option(
                    "status-topic",
                    "The topic with the statuses (status.topic of the jobs).",
                    "topic",
                    default=job_status.TOPIC,
                ),
                Option("tasks", "List the tasks and partitions of the jobs."),
                Option("json", "Print JSON."),
            ),
        ),
        Command(
            "logs",
            "Print the log of a job on this machine.",
            (
                Option("lines", "The number of lines.", "number", int, default=100),
                Option("follow", "Print what is added, until Ctrl-C."),
            ),
            positionals=(Positional("application.id", "The job."),),
        ),
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
        case "pack":
            return _pack(args)
        case "status":
            return _status(args)
        case "logs":
            return _logs(args)
    return _stop(args)


def _run(args: Arguments) -> int:
    job = Path(args.positionals[0])
    if not job.is_file():
        raise ToolError(f"there is no file {job}")
    topology, config = _load(job, "verbose" in args)
    config.update(_pairs(args["config"], "config"))
    _add_spark_settings(config, job, args)
    if args["bootstrap-server"]:
        config["bootstrap.servers"] = args["bootstrap-server"]
    if args["master"]:
        config["spark.master"] = args["master"]
    if "describe" in args:
        print(topology.describe(), end="")
        return 0
    from kavka.streams import KafkaStreams, StreamsException

    if "verbose" not in args:
        os.environ.setdefault("KAVKA_SPARK_LOG_LEVEL", "OFF")
        # The tool prints the error that ends the application.
        logging.getLogger("kavka.pipeline.streams.application").addFilter(lambda record: record.levelno < logging.ERROR)
    stop = threading.Event()
    timestamp = None if args["from-timestamp"] is None else _timestamp(args["from-timestamp"])
    try:
        streams = KafkaStreams(topology, config)
        # The handler only sets a flag: a signal may arrive during a call to Spark, whose connection
        # is not reentrant.
        signal.signal(signal.SIGTERM, lambda *_: stop.set())
        name = config["application.id"]
        previous_record = jobs.read(name)
        if previous_record is not None and previous_record["running"]:
            raise ToolError(f"{name} is already running: kavka pipeline stop {name}")
        if "clean-up" in args:
            streams.clean_up()
        metadata: dict[str, Any] = {"job": str(job), "arguments": _arguments(args), "folder": os.getcwd()}
        metadata["started"] = int(time.time() * 1000)
        with recorded_output(jobs.log_path(name)) as terminal:
            print(f"starting {name} on Spark", file=sys.stderr, flush=True)
            # Kafka's start() has no arguments.
            streams.start(**({} if timestamp is None else {"from_timestamp": timestamp}))
            # Replace PySpark's handler, which cancels running work and raises KeyboardInterrupt.
            signal.signal(signal.SIGINT, lambda *_: stop.set())
            failure = _until_ended(streams, config, metadata, stop, terminal, "available-now" in args)
    except ConnectionError as error:
        raise ToolError(f"cannot connect to {config['bootstrap.servers']}: {error}") from None
    except (StreamsException, KafkaError, jobs.JobError, OSError) as error:
        raise ToolError(str(error)) from None
    if failure is not None:
        raise ToolError(failure)
    return 0


def _timestamp(text: str) -> int:
    try:
        return int(text) if text.isdecimal() else milliseconds_of(text)
    except ValueError as error:
        raise UsageError(f"--from-timestamp: {error}") from None


def _until_ended(
    streams: KafkaStreams,
    config: dict[str, Any],
    metadata: dict[str, Any],
    stop: threading.Event,
    terminal: TextIO,
    is_bounded: bool,
) -> str | None:
    """Follow a job until it ends. Return the error that ended it, None if it was stopped or has
    processed everything."""
    name, topic = config["application.id"], config.get("status.topic", job_status.TOPIC)
    status = job_status.StatusWriter(streams.clients(), name, topic) if topic else None
    errors: list[str] = []
    if is_bounded:
        threading.Thread(target=_process_available, args=(streams, stop, errors), daemon=True).start()
    record = _follow(streams, name, metadata, stop, terminal, status)
    failure = str(streams.exception() or "".join(errors[:1])) or None
    if failure is None:
        jobs.remove(name)
    else:
        record = {**record, "state": jobs.FAILED, "error": failure[: jobs.MAX_ERROR_LENGTH]}
        jobs.write(name, record)
        print(failure, file=sys.stderr, flush=True)
    if status is not None:
        status.close(None if failure is None else record)
    return failure


def _process_available(streams: KafkaStreams, stop: threading.Event, errors: list[str]) -> None:
    """Stop the job when the records that exist now are processed, also in its own topics."""
    try:
        streams.process_all_available()
    except Exception as error:
        errors.append(f"{type(error).__name__}: {error}")
    stop.set()


def _arguments(args: Arguments) -> list[str]:
    """Return the arguments that start this job again."""
    options = [f"--{name}={args[name]}" for name in ("bootstrap-server", "master", "archive") if args[name]]
    for name in ("config", "conf", "py-files", "package", "jars"):
        options += [f"--{name}={value}" for value in args[name] or ()]
    return [*args.positionals, *options]


def _load(job: Path, is_verbose: bool) -> tuple[Any, dict[str, Any]]:
    """Run the file of a job and return its topology and settings. Raise ToolError if the file does
    not define them or fails."""
    sys.path.insert(0, str(job.resolve().parent))
    try:
        names = runpy.run_path(str(job), run_name="kavka_job")
        if "build" not in names or "CONFIG" not in names:
            raise ToolError(f"{job} must define build(), which returns the topology, and CONFIG")
        topology = names["build"]()
        if not hasattr(topology, "subtopologies"):
            kind = type(topology).__name__
            raise ToolError(f"{job}: build() must return a Topology, as StreamsBuilder.build() does, not {kind}")
        return topology, dict(names["CONFIG"])
    except ToolError:
        raise
    except Exception as error:
        if is_verbose:
            traceback.print_exc()
        lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == str(job)]
        if isinstance(error, SyntaxError) and error.filename == str(job):
            lines.append(error.lineno)
        at = f" line {lines[-1]}" if lines else ""
        raise ToolError(f"{job}{at}: {type(error).__name__}: {error} (--verbose prints the stack trace)") from None


def _pairs(settings: list[str] | None, option: str) -> dict[str, str]:
    for setting in settings or ():
        if "=" not in setting:
            raise ToolError(f"--{option} {setting}: give name=value")
    return dict(setting.split("=", 1) for setting in settings or ())


def _add_spark_settings(config: dict[str, Any], job: Path, args: Arguments) -> None:
    config.update(_pairs(args["conf"], "conf"))
    lists = {
        "spark.jars": args["jars"],
        "spark.jars.packages": args["package"],
        "spark.archives": [args["archive"]] if args["archive"] else None,
        "spark.submit.pyFiles": [*(args["py-files"] or ()), *_own_modules(job)],
    }
    for name, values in lists.items():
        entries = [str(config[name])] if config.get(name) else []
        entries += values or ()
        if entries:
            config[name] = ",".join(entries)


def _own_modules(job: Path) -> list[str]:
    """The modules and packages that the job has imported from its folder."""
    folder = job.resolve().parent
    names = {name.partition(".")[0] for name in sys.modules}
    paths = []
    for name in sorted(names - {"__main__"}):
        file = getattr(sys.modules.get(name), "__file__", None)
        if file and Path(file).resolve() in (folder / f"{name}.py", folder / name / "__init__.py"):
            paths.append(str(folder / f"{name}.py" if (folder / f"{name}.py").exists() else folder / name))
    return paths


def _pack(args: Arguments) -> int:
    from kavka.pipeline.spark.errors import PipelineError
    from kavka.pipeline.spark.packing import pack

    output = Path(args["output"] or "environment.tar.gz")
    try:
        distributions = pack(output, args["include"] or ())
    except (PipelineError, OSError) as error:
        raise ToolError(str(error)) from None
    print(f"{output} ({output.stat().st_size / 1_000_000:.0f} MB): {', '.join(distributions)}")
    return 0


def _follow(
    streams: KafkaStreams,
    name: str,
    metadata: dict[str, Any],
    stop: threading.Event,
    terminal: TextIO,
    status: job_status.StatusWriter | None,
) -> dict[str, Any]:
    """Record the status of a job, and show it on a terminal, until the job ends or `stop` is set.
    Return the last record."""
    is_terminal = at_terminal(terminal)
    last_record: dict[str, Any] | None = None
    while not streams.wait(0.5):
        if stop.is_set():
            streams.close()
            continue
        record = streams.status()
        if status is not None:
            status.update({**metadata, **record})
        if record != last_record:
            jobs.write(name, {**metadata, **record})
            last_record = record
            if is_terminal:
                line = f"batch {record['batch']}  {record['rows_per_second']:,.0f} rows/s  lag {record['lag']:,}  "
                print(f"\r{line}state {record['state_rows']:,} rows\x1b[K", end="", file=terminal, flush=True)
    if is_terminal and last_record is not None:
        print(file=terminal)
    return {**metadata, **(last_record or {})}


_COLUMNS = (
    "application.id", "host", "pid", "state", "batch", "rows_per_second", "lag", "lag_seconds", "state_rows",
    "state_bytes", "restores",
)  # fmt: skip


def _status(args: Arguments) -> int:
    running_jobs = [job for job in _all_jobs() if job["running"]]
    if args["bootstrap-server"]:
        running_jobs = _jobs_of_cluster(args)
    if args["json"]:
        print_json(running_jobs)
        return 0
    _print_jobs(_COLUMNS, running_jobs)
    if "tasks" in args:
        for job in running_jobs:
            name = {"application.id": job["application.id"]}
            _print_jobs(
                ("application.id", "task", "records", "state_bytes", "restores"),
                [{**name, **task} for task in job.get("tasks") or ()],
            )
            _print_jobs(
                ("application.id", "topic", "partition", "lag", "lag_seconds"),
                [{**name, **partition} for partition in job.get("partitions") or ()],
            )
    return 0


def _print_jobs(columns: tuple[str, ...], rows: list[dict[str, Any]]) -> None:
    print_table([name.upper() for name in columns], [[_cell(row.get(name, "")) for name in columns] for row in rows])


def _cell(value: Any) -> str:
    """The statuses come from a topic: print no control characters."""
    text = f"{value:.1f}" if isinstance(value, float) else str(value)
    return "".join(character if character.isprintable() else "?" for character in text)


def _jobs_of_cluster(args: Arguments) -> list[dict[str, Any]]:
    """Return the jobs in the cluster's topic, failed and killed ones included."""
    settings = read_properties(args["command-config"]) if "command-config" in args else {}
    settings["bootstrap.servers"] = args["bootstrap-server"]
    return job_status.read_statuses(settings, args["status-topic"])


def _logs(args: Arguments) -> int:
    name = args.positionals[0]
    try:
        path = jobs.log_path(name)
    except jobs.JobError as error:
        raise ToolError(str(error)) from None
    if not path.exists():
        raise ToolError(
            f"there is no log of {name} on this machine (kavka pipeline status --bootstrap-server shows its host)"
        )
    try:
        print_log(path, max(0, args["lines"]), "follow" in args)
    except KeyboardInterrupt:
        print()
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
