"""`kavka mirror-maker` (`kafka-mirror-maker`) and `kavka connect-mirror-maker`: MirrorMaker 1 and 2, on Spark."""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, TypeVar

from kavka.cli.clients import ended_by_signals, exit_code, file_option
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
    Option("master", "Spark's master; this machine with all its cores where none is given.", "master"),
    Option("status", "Answer at this address: /status as JSON, /metrics for Prometheus.", "host:port"),
    Option("report-interval-ms", "Print how far each flow is, so often.", "milliseconds", int, 10_000),
)

COMMAND = Command(
    "mirror-maker",
    "Copy topics of a cluster into another, under the same names: partitions, keys, headers and timestamps are kept.",
    (
        file_option("consumer.config", "Settings of the consumer: bootstrap.servers and group.id at least."),
        file_option("producer.config", "Settings of the producer: bootstrap.servers at least."),
        Option("include", "Which topics: regular expressions separated by commas.", "Java regex (String)"),
        Option("num.streams", "How many partitions are copied at a time; as many as there are cores.", "number", int),
        Option(
            "abort.on.send.failure", "End when the target refuses a record, rather than going on without it.",
            "true or false", choices=("true", "false"), default="true",
        ),
        Option("offset.commit.interval.ms", "Has no effect: offsets are committed after every batch.", "ms", int),
        Option("exactly-once", "Each record once, also after a crash, for readers of committed records."),
        Option("state-dir", "Where --exactly-once keeps what has to be known after a crash.", "folder"),
        *_RUN_OPTIONS,
        Option("whitelist", "As --include.", "Java regex (String)", older=True),
        Option("message.handler", "Not supported: a transformation is a streams job.", "class", hidden=True),
        Option("message.handler.args", "Not supported.", "arguments", hidden=True),
        Option("consumer.rebalance.listener", "Not supported: there are no rebalances.", "class", hidden=True),
        Option("rebalance.listener.args", "Not supported.", "arguments", hidden=True),
        Option("new.consumer", "Has no effect: there is no other.", hidden=True),
    ),
    examples=(
        "kavka mirror-maker --consumer.config source.properties --producer.config target.properties --include orders",
    ),
)  # fmt: skip

CONNECT_COMMAND = Command(
    "connect-mirror-maker",
    "Mirror clusters into one another by MirrorMaker 2's file: topics with their settings, groups, heartbeats.",
    (
        Option("clusters", "Only flows into these clusters.", "cluster", several=True),
        *_RUN_OPTIONS,
    ),
    positionals=(Positional("mm2.properties", "MirrorMaker 2's file."),),
    examples=("kavka connect-mirror-maker config/connect-mirror-maker.properties",),
)


def main(argv: list[str]) -> int:
    return run(COMMAND, argv, _mirror_maker)


def connect_main(argv: list[str]) -> int:
    return run(CONNECT_COMMAND, argv, _connect_mirror_maker)


def _mirror_maker(args: Arguments) -> int:
    for name in ("message.handler", "message.handler.args", "consumer.rebalance.listener", "rebalance.listener.args"):
        if name in args:
            raise UsageError(f"--{name} is not supported: records are copied as they are")
    args.require("consumer.config", "producer.config")
    include = args.first("include", "whitelist")
    if include is None:
        raise UsageError('Missing required argument "[include]"')
    from kavka.pipeline.mirror.settings import simple_flow

    streams = args["num.streams"]
    if streams is not None and streams < 1:
        raise UsageError(f"--num.streams must be at least 1, not {streams}")
    flow = _explained(
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

    given = read_properties(args.positionals[0])
    flows = _explained(lambda: flows_of(given, args["clusters"]))
    spark = {name: value for name, value in given.items() if name.startswith("spark.")}
    return _run(flows, args, args["master"] or spark.pop("spark.master", None), spark)


def _explained(work: Callable[[], T]) -> T:
    from kavka.pipeline.spark.errors import PipelineError

    try:
        return work()
    except PipelineError as error:
        raise ToolError(str(error)) from None


def _run(flows: list[Flow], args: Arguments, master: str | None, spark: Mapping[str, str]) -> int:
    from kavka.pipeline.mirror.running import Mirror, session
    from kavka.pipeline.mirror.status import FAILED, StatusListener

    logging.basicConfig(level="WARNING", format="%(levelname)s %(message)s", stream=sys.stderr)
    listener = None
    with ended_by_signals():
        try:
            mirror = Mirror(flows, _explained(lambda: session(master, spark)))
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
    failed = [one for one in mirror.statuses() if one.state == FAILED]
    if failed and not code:
        raise ToolError(f"{failed[0].flow}: {failed[0].error}")
    return code


def _follow(mirror: Mirror, interval: float) -> None:
    """Until no flow runs any more: a live line at a terminal, else a line now and then."""
    due = time.monotonic() + interval
    with Progress() as progress:
        while not mirror.ended:
            time.sleep(0.2)
            flows = [one for one in mirror.flows if one.flow.enabled]
            if progress.on:
                progress.show("; ".join(one.status.line() for one in flows))
            elif time.monotonic() >= due:
                due = time.monotonic() + interval
                for one in flows:
                    print(one.status.line(), flush=True)


def _address(text: str) -> tuple[str, int]:
    host, _, port = text.rpartition(":")
    if not port.isdigit():
        raise UsageError(f"--status must be host:port, not '{text}'")
    return host.strip("[]"), int(port)
