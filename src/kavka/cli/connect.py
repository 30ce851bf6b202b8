"""`kavka connect-standalone` and `kavka connect-distributed`: Connect workers."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from pathlib import Path

from kavka.cli.connecting import read_properties
from kavka.cli.options import Arguments, Command, Option, Positional
from kavka.cli.partitions import read_json
from kavka.cli.tool import ToolError, log_to_stderr, run

_OVERRIDE = Option("override", "A worker setting. Takes precedence over the file.", "name=value", repeated=True)

COMMAND = Command(
    "connect-standalone",
    "Run connectors in one process until it is stopped. Connectors with trigger=available-now end by themselves.",
    (_OVERRIDE,),
    positionals=(
        Positional("worker.properties", "The worker's settings."),
        Positional("connector.properties", "A connector's settings, as properties or JSON.", required=False, many=True),
    ),
    examples=("kavka connect-standalone config/connect-standalone.properties my-source.properties",),
)

DISTRIBUTED_COMMAND = Command(
    "connect-distributed",
    "Run a worker of a Connect cluster. The workers share the connectors, which are managed over REST.",
    (_OVERRIDE,),
    positionals=(Positional("worker.properties", "The worker's settings."),),
    examples=("kavka connect-distributed config/connect-distributed.properties",),
)


def main(argv: list[str]) -> int:
    return run(COMMAND, argv, _standalone)


def distributed_main(argv: list[str]) -> int:
    return run(DISTRIBUTED_COMMAND, argv, _distributed)


def _standalone(args: Arguments) -> int:
    connectors = [_connector(path) for path in args.positionals[1:]]

    def work(properties: dict[str, str]) -> int:
        from kavka.pipeline.connect.worker import run_standalone

        return run_standalone(properties, connectors, _announce)

    return _run(args, work)


def _distributed(args: Arguments) -> int:
    def work(properties: dict[str, str]) -> int:
        from kavka.pipeline.connect.worker import run_distributed

        return run_distributed(properties, _announce)

    return _run(args, work)


def _run(args: Arguments, work: Callable[[dict[str, str]], int]) -> int:
    properties = read_properties(args.positionals[0])
    for override in args["override"] or ():
        name, equals, value = override.partition("=")
        if not equals:
            raise ToolError(f"--override {override}: expected name=value")
        properties[name.strip()] = value.strip()
    log_to_stderr("INFO")
    logging.getLogger("py4j").setLevel(logging.WARNING)
    try:
        from kavka.pipeline.connect.errors import ConfigErrors, ConnectError
        from kavka.pipeline.connect.herder import RestError
    except ImportError as error:
        raise ToolError(f"{error}: pip install 'kavka[pipeline,connect]'") from None
    try:
        return work(properties)
    except ConfigErrors as error:
        # One line, which names each bad setting.
        messages = (f"{name}: {message}" for name, errors in error.errors.items() for message in errors)
        raise ToolError("; ".join(messages)) from None
    except (ConnectError, RestError, OSError) as error:
        raise ToolError(str(error)) from None


def _announce(url: str) -> None:
    print(f"Kafka Connect's REST interface is at {url}", flush=True)


def _connector(path: str) -> dict[str, str]:
    """Read a connector's settings: properties, or JSON with the settings or {"name", "config"}."""
    if Path(path).suffix != ".json":
        return read_properties(path)
    settings = read_json(path)
    if not isinstance(settings, dict):
        raise ToolError(f"{path}: must be a JSON object")
    if isinstance(settings.get("config"), dict):
        settings = {**settings["config"], "name": settings.get("name", settings["config"].get("name", ""))}
    return {name: value if isinstance(value, str) else json.dumps(value) for name, value in settings.items()}
