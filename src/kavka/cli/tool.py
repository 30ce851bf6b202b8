"""How every tool runs: its command line read by its table, each failure one line on standard error and an exit code."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable, Sequence

from kavka.cli.options import Arguments, Command, UsageError, help_text, parse

Body = Callable[[Arguments], "int | None"]

INTERRUPTED = 130


class ToolError(Exception):
    """What the tool was asked for cannot be done; `str()` is the line that says why."""

    def __init__(self, message: str, code: int = 1) -> None:
        super().__init__(message)
        self.code = code


def run(command: Command, argv: Sequence[str], body: Body) -> int:
    """The exit code of `body`, called with what the command line says; 0 where it returns nothing."""
    program = f"kavka {command.name}"
    try:
        args = parse(command, argv)
        if "help" in args:
            sub = args.subcommand
            print(help_text(args.command, f"{program} {sub}" if sub else program))
            return 0
        if "version" in args:
            from kavka import __version__

            print(f"kavka {__version__}")
            return 0
        if not args.command.positionals:
            for stray in args.positionals:
                print(f"{program}: '{stray}' belongs to no option and is left aside", file=sys.stderr)
        code = body(args) or 0
        sys.stdout.flush()
        return code
    except UsageError as error:
        return fail(f"{program}: {error} (--help shows the options)")
    except ToolError as error:
        return fail(f"{command.error or f'{program}: '}{error}", error.code)
    except BrokenPipeError:
        # Whoever reads has seen enough. What is still buffered must not fail again when the interpreter ends.
        with contextlib.suppress(OSError, ValueError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except KeyboardInterrupt:
        return INTERRUPTED
    except Exception as error:
        return _explained(command, program, error)


def _explained(command: Command, program: str, error: Exception) -> int:
    from kavka.common.config import ConfigError
    from kavka.common.errors import KafkaError
    from kavka.common.properties import PropertiesError
    from kavka.protocol.primitives import ProtocolError

    # What cannot be put into a request was too long or too large on the command line.
    if isinstance(error, (KafkaError, ConfigError, PropertiesError, ProtocolError)):
        return fail(f"{command.error or f'{program}: '}{reason(error)}")
    if isinstance(error, OSError) and error.strerror:
        return fail(f"{program}: {error.filename}: {error.strerror}" if error.filename else f"{program}: {error}")
    raise error


def reason(error: Exception) -> str:
    """What went wrong, without the name of the thing where there is only one."""
    errors = getattr(error, "errors", None)
    if errors and len(errors) == 1:
        error = next(iter(errors.values()))
    return one_line(str(error))


def one_line(text: str) -> str:
    return " ".join(text.split("\n")).strip()


def fail(message: str, code: int = 1) -> int:
    with contextlib.suppress(BrokenPipeError):
        sys.stdout.flush()
    print(one_line(message), file=sys.stderr)
    return code


def note(command: str, message: str) -> None:
    """Something a person should know that is no part of the result."""
    print(f"kavka {command}: {message}", file=sys.stderr, flush=True)
