"""`kavka console producer|consumer`: console-producer and console-consumer, written in two words.

`bin/kafka-console producer.sh …`, as some documents have it, thus works too.
"""

from __future__ import annotations

from importlib import import_module

from kavka.cli.options import Command, Positional
from kavka.cli.tool import run

COMMAND = Command(
    "console",
    "Short for console-producer and console-consumer: all that follows the first word is for them.",
    positionals=(Positional("producer|consumer", "Which of the two; with or without .sh.", completes=""),),
)

MODULES = {"producer": "kavka.cli.console_producer", "consumer": "kavka.cli.console_consumer"}


def main(argv: list[str]) -> int:
    module = MODULES.get(argv[0].removesuffix(".sh")) if argv else None
    if module is None:
        return run(COMMAND, argv if argv and argv[0].startswith("-") else [], lambda args: 1)
    return int(import_module(module).main(argv[1:]))
