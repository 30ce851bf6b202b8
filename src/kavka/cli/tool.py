"""Running a tool: parse the command line, and report a failure as one line on standard error and an
exit code."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable, Sequence

from kavka.cli.options import Arguments, Command, UsageError, help_text, parse

Body = Callable[[Arguments], "int | None"]

INTERRUPTED_EXIT_CODE = 130


class ToolError(Exception):
    """The tool failed. `str()` is a one-line message for the user."""


def run(command: Command, argv: Sequence[str], body: Body) -> int:
    """Parse the command line, call `body` and return the exit code."""
    program = f"kavka {command.name}"
    try:
        args = parse(command, argv)
        if "help" in args:
            subcommand = args.subcommand
            print(help_text(args.command, f"{program} {subcommand}" if subcommand else program))
            return 0
        if "version" in args:
            from kavka import __version__

            print(f"kavka {__version__}")
            return 0
        if not args.command.positionals:
            for argument in args.positionals:
                print(f"{program}: ignoring the argument '{argument}'", file=sys.stderr)
        code = body(args) or 0
        sys.stdout.flush()
        return code
    except UsageError as error:
        return fail(f"{program}: {error} (--help shows the options)")
    except ToolError as error:
        return fail(f"{command.error or f'{program}: '}{error}")
    except BrokenPipeError:
        # The reader has closed the pipe. Python must not write the buffered output at exit.
        with contextlib.suppress(OSError, ValueError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except KeyboardInterrupt:
        return INTERRUPTED_EXIT_CODE
    except Exception as error:
        return _fail_or_raise(command, program, error)


def _fail_or_raise(command: Command, program: str, error: Exception) -> int:
    """Report an expected error and return the exit code 1. Raise any other error again."""
    from kavka.common.config import ConfigError
    from kavka.common.errors import KafkaError
    from kavka.common.properties import PropertiesError
    from kavka.protocol.primitives import ProtocolError

    # ProtocolError: a value on the command line is too long or too large for a request.
    if isinstance(error, (KafkaError, ConfigError, PropertiesError, ProtocolError)):
        return fail(f"{command.error or f'{program}: '}{reason(error)}")
    if isinstance(error, OSError) and error.strerror:
        return fail(f"{program}: {error.filename}: {error.strerror}" if error.filename else f"{program}: {error}")
    raise error


def reason(error: Exception) -> str:
    """Return the message of an error. If it has exactly one cause, return the cause's message."""
    errors = getattr(error, "errors", None)
    if errors and len(errors) == 1:
        error = next(iter(errors.values()))
    return one_line(str(error))


def one_line(text: str) -> str:
    return " ".join(text.split("\n")).strip()


def fail(message: str) -> int:
    """Print an error on standard error and return the exit code 1."""
    with contextlib.suppress(BrokenPipeError):
        sys.stdout.flush()
    print(one_line(message), file=sys.stderr)
    return 1


def log_to_stderr(default_level: str) -> str:
    """Set up logging with the level in KAVKA_LOG_LEVEL, or with `default_level` if that variable is
    not set or invalid. Return the level."""
    import logging

    level = os.environ.get("KAVKA_LOG_LEVEL", "").upper()
    if level not in logging.getLevelNamesMapping():
        level = default_level
    logging.basicConfig(level=level, format="[%(asctime)s] %(levelname)s %(message)s (%(name)s)", stream=sys.stderr)
    return level


def note(command: str, message: str) -> None:
    """Print a message for the user on standard error."""
    print(f"kavka {command}: {message}", file=sys.stderr, flush=True)
