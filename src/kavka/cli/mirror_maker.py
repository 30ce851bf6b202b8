"""`kavka mirror-maker` (`kafka-mirror-maker`) and `kavka connect-mirror-maker`: MirrorMaker 1 and 2
on Spark."""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, TypeVar

from kavka.cli.clients import exit_code, file_option, sigterm_as_interrupt
from kavka.cli.connecting import read_properties
from kavka.cli.names import TopicFilter
from kavka.cli.options import Arguments, Command, Option, Positional, UsageError
from kavka.cli.output import Progress
from kavka.cli.tool import ToolError, run

if TYPE_CHECKING:
    from kavka.pipeline.mirror.flow import Flow
    from kavka.pipeline.mirror.running import Mirror

T = TypeVar("T")

_RUN_OPTIONS = (
    Option("master", "Spark's master; by default all cores of this machine.", "master"),
    Option("status", "Serve /status (JSON) and /metrics (Prometheus) at this address.", "host:port"),
    Option("report-interval-ms", "Interval of the progress lines.", "milliseconds", int, 10_000),
)

COMMAND = Command(
    "mirror-maker",
    "Copy topics to another cluster under the same names. Partitions, keys, headers and timestamps are preserved.",
    (
        file_option("consumer.config", "Consumer settings, at least bootstrap.servers and group.id."),
        file_option("producer.config", "Producer settings, at least bootstrap.servers."),
        Option("include", "The topics: regular expressions separated by commas.", "Java regex (String)"),
        Option("num.streams", "Number of partitions copied in parallel; by default the number of cores.", "number",
               int),
        Option(
            "abort.on.send.failure", "Exit if the target rejects a record, instead of skipping the record.",
            "true or false", choices=("true", "false"), default="true",
        ),
        Option("offset.commit.interval.ms", "Has no effect: offsets are committed after every batch.", "ms", int),
        Option("exactly-once", "Copy each record exactly once, for read_committed consumers of the target."),
        Option("state-dir", "The folder for the recovery state of --exactly-once.", "folder"),
        *_RUN_OPTIONS,
        Option("whitelist", "Same as --include.", "Java regex (String)", deprecated=True),
        Option("message.handler", "Not supported: use a streams job for transformations.", "class", hidden=True),
        Option("message.handler.args", "Not supported.", "arguments", hidden=True),
        Option("consumer.rebalance.listener", "Not supported: there are no rebalances.", "class", hidden=True),
        Option("rebalance.listener.args", "Not supported.", "arguments", hidden=True),
        Option("new.consumer", "Has no effect: it is the only consumer.", hidden=True),
    ),
    examples=(
        "kavka mirror-maker --consumer.config source.properties --producer.config target.properties --include orders",
    ),
)  # fmt: skip

CONNECT_COMMAND = Command(
    "connect-mirror-maker",
    "Mirror clusters as configured in a MirrorMaker 2 file: topics with their settings, groups, heartbeats.",
    (
        Option("clusters", "Only flows into these clusters.", "cluster", several=True),
        *_RUN_OPTIONS,
    ),
    positionals=(Positional("mm2.properties", "The MirrorMaker 2 file."),),
    examples=("kavka connect-mirror-maker config/connect-mirror-maker.properties",),
)


def main(argv: list[str]) -> int:
    return run(COMMAND, argv, _mirror_maker)


def connect_main(argv: list[str]) -> int:
    return run(CONNECT_COMMAND, argv, _connect_mirror_maker)


def _mirror_maker(args: Arguments) -> int:
    for name in ("message.handler", "message.handler.args", "consumer.rebalance.listener", "rebalance.listener.args"):
        if name in args:
            raise UsageError(f"--{name} is not supported: records are copied unchanged")
    args.require("consumer.config", "producer.config")
    include = args.first("include", "whitelist")
    if include is None:
        raise UsageError('Missing required argument "[include]"')
    from kavka.pipeline.mirror.settings import simple_flow

    streams = args["num.streams"]
    if streams is not None and streams < 1:
        raise UsageError(f"--num.streams must be at least 1, not {streams}")
    flow = _or_tool_error(
        lambda: simple_flow(
            read_properties(args["consumer.config"]),
            read_properties(args["producer.config"]),
            TopicFilter(include).pattern.pattern,
            abort_on_failure=args["abort.on.send.failure"] == "true",
            exactly_once="exactly-once" in args,
            state_dir=args["state-dir"] or "",
        )
    )
    return _run([flow], args, args["master"] or (f"local[{streams}]" if streams else None), {})


def _connect_mirror_maker(args: Arguments) -> int:
    from kavka.pipeline.mirror.settings import flows_of

    properties = read_properties(args.positionals[0])
    flows = _or_tool_error(lambda: flows_of(properties, args["clusters"]))
    spark_settings = {name: value for name, value in properties.items() if name.startswith("spark.")}
    return _run(flows, args, args["master"] or spark_settings.pop("spark.master", None), spark_settings)


def _or_tool_error(work: Callable[[], T]) -> T:
    """Return the result of `work`. Raise its PipelineError as a ToolError."""
    from kavka.pipeline.spark.errors import PipelineError

    try:
        return work()
    except PipelineError as error:
        raise ToolError(str(error)) from None


def _run(flows: list[Flow], args: Arguments, master: str | None, spark_settings: Mapping[str, str]) -> int:
    """Run the flows until they end or a signal stops them, and return the exit code. Raise
    ToolError if a flow failed."""
    from kavka.pipeline.mirror.running import Mirror, session
    from kavka.pipeline.mirror.status import FAILED, StatusListener

    logging.basicConfig(level="WARNING", format="%(levelname)s %(message)s", stream=sys.stderr)
    listener = None
    with sigterm_as_interrupt():
        try:
            mirror = Mirror(flows, _or_tool_error(lambda: session(master, spark_settings)))
            if args["status"]:
                host, port = _address(args["status"])
                listener = StatusListener(host, port, mirror.statuses)
                print(f"status at http://{host or 'localhost'}:{listener.port}/status", file=sys.stderr, flush=True)
            mirror.start()
        except KeyboardInterrupt as error:
            return exit_code(error)
        code = 0
        try:
            _follow(mirror, args["report-interval-ms"] / 1000)
        except KeyboardInterrupt as error:
            code = exit_code(error)
        mirror.stop()
    if listener is not None:
        listener.close()
    failed = [status for status in mirror.statuses() if status.state == FAILED]
    if failed and not code:
        raise ToolError(f"{failed[0].flow}: {failed[0].error}")
    return code


def _follow(mirror: Mirror, interval: float) -> None:
    """Report the progress until all flows have ended: on a terminal as a live line, otherwise as
    one line per flow and interval."""
    next_report = time.monotonic() + interval
    with Progress() as progress:
        while not mirror.has_ended:
            time.sleep(0.2)
            statuses = [flow.status for flow in mirror.flows if flow.flow.enabled]
            if progress.is_shown:
                progress.show("; ".join(status.line() for status in statuses))
            elif time.monotonic() >= next_report:
                next_report = time.monotonic() + interval
                for status in statuses:
                    print(status.line(), flush=True)


def _address(text: str) -> tuple[str, int]:
    host, _, port = text.rpartition(":")
    if not port.isdigit():
        raise UsageError(f"--status must be host:port, not '{text}'")
    return host.strip("[]"), int(port)
