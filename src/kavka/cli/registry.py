"""`kavka registry`: run a schema registry for development, Apicurio Registry in Java."""

from __future__ import annotations

import os
import shlex
import sys

from kavka.cli import registry_files
from kavka.cli.options import Arguments, Command, Option, UsageError
from kavka.cli.tool import ToolError, note, run
from kavka.runtimes import MissingRuntime, find_java

DEFAULT_PORT = 8081

COMMAND = Command(
    "registry",
    "Run a schema registry for development: Apicurio Registry, with Confluent's REST API. It requires Java 17. The "
    "first start downloads the registry (109 MB) to the user's cache, unless APICURIO_HOME is set. Schemas are in "
    "memory: they are lost when the registry stops. KAVKA_REGISTRY_OPTS is passed to Java.",
    (
        Option("host", "The address to listen on.", "address", default="localhost"),
        Option("port", "The port to listen on.", "port", int, DEFAULT_PORT),
    ),
    examples=("kavka registry", "kavka registry --port 8085"),
)


def main(argv: list[str]) -> int:
    return run(COMMAND, argv, _start)


def _start(args: Arguments) -> int:
    host, port = args["host"], args["port"]
    if not 0 < port < 65536:
        raise UsageError(f"--port {port} is not a port")
    home = registry_files.find_home()
    if home is None:
        # Check for Java before the download.
        try:
            find_java()
        except MissingRuntime as error:
            raise ToolError(f"the schema registry requires Java: {error}") from None
        note(COMMAND.name, f"downloading Apicurio Registry {registry_files.VERSION}")
        home = registry_files.download(registry_files.cache_folder())
    jvm = shlex.split(os.environ.get("KAVKA_REGISTRY_OPTS", ""))
    argv = registry_files.command(home, host, port, jvm=jvm)
    print(f"schema.registry.url=http://{host}:{port}{registry_files.API_PATH}")
    sys.stdout.flush()
    os.execv(argv[0], argv)
