"""The options of a tool as a table, and how a command line is read by it.

One table per tool: the parser, `--help`, docs/tools.md and the shells' completion are made from it. Command lines are
read as Kafka's tools read them: `--name value` and `--name=value`, one dash as good as two, any prefix that fits only
one name, a value taken as it comes even if it begins with a dash, what stands alone left aside.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any


class UsageError(Exception):
    """The command line is wrong; `str()` is the one line that says how."""


@dataclass(frozen=True, slots=True)
class Option:
    """`name` is Kafka's, without dashes. Without a `metavar` it is a flag."""

    name: str
    help: str
    metavar: str = ""
    type: Callable[[str], Any] = str
    default: Any = None
    aliases: tuple[str, ...] = ()
    repeated: bool = False
    """May be given many times: its value is a list of all."""
    separator: str = ""
    """The value is a list, split at this."""
    several: bool = False
    """Takes all values up to the next option: `--producer-props acks=1 linger.ms=5`; its value is a list."""
    optional: bool = False
    """The value may be left out: then it is ""."""
    required: bool = False
    choices: tuple[str, ...] = ()
    ignore_case: bool = False
    """Choices are found in any case, and their value is as the table has it."""
    default_text: str = ""
    """How the default is shown, where it is not plain."""
    older: bool = False
    """Kept for command lines of older days; shown apart."""
    hidden: bool = False
    completes: str = ""
    """What a shell offers for its value: file, directory, topic, group; choices are offered anyway."""

    @property
    def names(self) -> tuple[str, ...]:
        return (self.name, *self.aliases)

    @property
    def is_list(self) -> bool:
        return self.repeated or self.several or bool(self.separator)

    @property
    def empty(self) -> Any:
        """Its value where it was not given."""
        if self.default is not None:
            return self.default
        if not self.metavar:
            return False
        return [] if self.is_list else None

    @property
    def synopsis(self) -> str:
        dashed = ", ".join(("--" if len(name) > 1 else "-") + name for name in self.names)
        if not self.metavar:
            return dashed
        value = f"[<{self.metavar}>]" if self.optional else f"<{self.metavar}>"
        return f"{dashed} {value}{' …' if self.several else ''}"

    @property
    def notes(self) -> str:
        """What the table says beside the help: choices, the default, whether it may be repeated."""
        said = []
        if self.choices:
            said.append(f"one of {', '.join(self.choices)}")
        if self.required:
            said.append("required")
        if self.repeated:
            said.append("may be repeated")
        shown = self.default_text or ("" if self.default is None or isinstance(self.default, bool) else self.default)
        if shown != "":
            said.append(f"default: {shown}")
        return "; ".join(said)


@dataclass(frozen=True, slots=True)
class Positional:
    name: str
    help: str
    required: bool = True
    many: bool = False
    completes: str = "file"


@dataclass(frozen=True, slots=True)
class Command:
    """A tool, or one of its sub-commands (`kafka-transactions describe`), whose tables count beside their parent's."""

    name: str
    summary: str
    options: tuple[Option, ...] = ()
    actions: tuple[str, ...] = ()
    """Options of which exactly one must be given."""
    positionals: tuple[Positional, ...] = ()
    subcommands: tuple[Command, ...] = ()
    examples: tuple[str, ...] = ()
    error: str = ""
    """What stands before the message of a failure, where Kafka's tool has words of its own for it."""

    def subcommand(self, name: str) -> Command | None:
        return next((sub for sub in self.subcommands if sub.name == name), None)


HELP = Option("help", "Print this and end.", aliases=("h",))
VERSION = Option("version", "Print the version and end.")


@dataclass(slots=True)
class Arguments:
    """What a command line says: `args["topic"]` is the value or the default, `"topic" in args` whether it was given."""

    command: Command
    values: dict[str, Any] = field(default_factory=dict)
    given: set[str] = field(default_factory=set)
    positionals: list[str] = field(default_factory=list)
    subcommand: str = ""

    def __getitem__(self, name: str) -> Any:
        return self.values[name]

    def __contains__(self, name: str) -> bool:
        return name in self.given

    def first(self, *names: str) -> Any:
        """The value of the first of these options that was given, else None."""
        return next((self.values[name] for name in names if name in self.given), None)

    def action(self) -> str:
        return next(name for name in self.command.actions if name in self.given)

    # --- checks in Kafka's words

    def require(self, *names: str) -> None:
        for name in names:
            if name not in self.given:
                raise UsageError(f'Missing required argument "[{name}]"')

    def forbid(self, name: str, *others: str) -> None:
        """None of the others may be there beside `name`."""
        if name in self.given:
            for other in others:
                if other in self.given:
                    raise UsageError(f'Option "[{name}]" can\'t be used with option "[{other}]"')


class _Names:
    """Every name of the options that count, and what a prefix may stand for."""

    def __init__(self, options: Iterable[Option]) -> None:
        self.by_name: dict[str, Option] = {}
        for option in options:
            for name in option.names:
                self.by_name[name] = option

    def find(self, text: str) -> Option | None:
        """By its name, or by a beginning that only one option has; UsageError where several have it."""
        if text in self.by_name:
            return self.by_name[text]
        if not text:
            return None
        fitting = [name for name, option in self.by_name.items() if name.startswith(text) and not option.hidden]
        found = {self.by_name[name].name for name in fitting}
        if len(found) > 1:
            shown = ", ".join(f"--{name}" for name in sorted(fitting))
            raise UsageError(f"--{text} may stand for more than one option: {shown}")
        return self.by_name[fitting[0]] if fitting else None

    def nearest(self, text: str) -> str:
        from difflib import get_close_matches

        known = [name for name, option in self.by_name.items() if not option.hidden]
        near = get_close_matches(text, known, n=1) or [name for name in known if name in text or text in name][:1]
        return f"; did you mean --{near[0]}?" if near else ""

    def is_option(self, token: str) -> bool:
        """Whether a token begins another option, rather than being one more value."""
        if len(token) < 2 or token[0] != "-" or _is_number(token):
            return False
        if token == "--":
            return True
        try:
            return token.startswith("--") or self.find(token[1:].partition("=")[0]) is not None
        except UsageError:
            return True


def parse(command: Command, argv: Sequence[str]) -> Arguments:
    """Read a command line. The result may hold `help` or `version`, and nothing else is checked then."""
    reader = _Reader(command)
    reader.read(list(argv))
    return reader.finish()


class _Reader:
    def __init__(self, command: Command) -> None:
        self.args = Arguments(command)
        self.options: list[Option] = [*command.options, HELP, VERSION]
        self.names = _Names(self.options)

    def read(self, tokens: list[str]) -> None:
        tokens.reverse()
        plain = False
        while tokens:
            token = tokens.pop()
            if plain or len(token) < 2 or token[0] != "-":
                self._stray(token)
            elif token == "--":
                plain = True
            else:
                self._option(token, tokens)

    def _stray(self, token: str) -> None:
        args = self.args
        if args.command.subcommands:
            found = args.command.subcommand(token)
            if found is None:
                known = ", ".join(sub.name for sub in args.command.subcommands)
                raise UsageError(f"there is no '{token}'; it must be one of {known}")
            args.command, args.subcommand = found, token
            self.options += [option for option in found.options if option.name not in self.names.by_name]
            self.names = _Names(self.options)
        else:
            args.positionals.append(token)

    def _option(self, token: str, rest: list[str]) -> None:
        text, equals, value = token.lstrip("-").partition("=")
        option = self.names.find(text)
        if option is None:
            if _is_number(token):
                self._stray(token)
                return
            raise UsageError(f"{text or token} is not a recognized option{self.names.nearest(text)}")
        if not option.metavar:
            if equals:
                raise UsageError(f"Option {option.name} takes no value, and '{value}' is one")
            self.args.values[option.name] = True
        else:
            self._values(option, [value] if equals else self._following(option, rest))
        self.args.given.add(option.name)

    def _following(self, option: Option, rest: list[str]) -> list[str]:
        found: list[str] = []
        if option.several:
            while rest and not self.names.is_option(rest[-1]):
                found.append(rest.pop())
        elif option.optional:
            found.append(rest.pop() if rest and not self.names.is_option(rest[-1]) else "")
        elif rest:
            found.append(rest.pop())
        if not found:
            raise UsageError(f"Option {option.name} requires an argument")
        return found

    def _values(self, option: Option, texts: list[str]) -> None:
        if option.separator:
            texts = [piece for text in texts for piece in text.split(option.separator)]
        values = [_converted(option, text) for text in texts]
        if option.repeated or option.several:
            self.args.values.setdefault(option.name, []).extend(values)
        elif option.name in self.args.given:
            raise UsageError(f"Found multiple arguments for option {option.name}, but you asked for only one")
        else:
            self.args.values[option.name] = values if option.separator else values[0]

    def finish(self) -> Arguments:
        args = self.args
        for option in self.options:
            args.values.setdefault(option.name, option.empty)
        if "help" in args or "version" in args:
            return args
        command = args.command
        if command.subcommands:
            raise UsageError(f"one of {', '.join(sub.name for sub in command.subcommands)} must be given")
        if command.actions:
            given = [name for name in command.actions if name in args]
            if len(given) != 1:
                shown = [f"--{name}" for name in command.actions]
                listed = ", ".join(shown[:-1]) + f" or {shown[-1]}" if len(shown) > 1 else shown[0]
                raise UsageError(f"Command must include exactly one action: {listed}")
        args.require(*(option.name for option in self.options if option.required))
        needed = [p.name for p in command.positionals if p.required]
        if len(args.positionals) < len(needed):
            raise UsageError(f"{needed[len(args.positionals)]} is missing")
        if command.positionals and not command.positionals[-1].many:
            extra = args.positionals[len(command.positionals) :]
            if extra:
                raise UsageError(f"'{extra[0]}' is one argument too many")
        return args


def _converted(option: Option, text: str) -> Any:
    if option.optional and text == "":
        return ""
    if option.choices:
        if option.ignore_case:
            text = next((choice for choice in option.choices if choice.lower() == text.lower()), text)
        if text not in option.choices:
            raise UsageError(f"'{text}' is not allowed for option {option.name}: one of {', '.join(option.choices)}")
    if option.type is str:
        return text
    try:
        return option.type(text)
    except ValueError as error:
        why = "" if option.type in (int, float) else f": {error}"
        raise UsageError(f"Cannot parse argument '{text}' of option {option.name}{why}") from None


def _is_number(token: str) -> bool:
    return token[1:2].isdigit() or (token[1:2] == "." and token[2:3].isdigit())


def boolean(text: str) -> bool:
    if text.lower() not in ("true", "false"):
        raise ValueError("true or false is expected")
    return text.lower() == "true"


def key_value(text: str) -> tuple[str, str]:
    """`name=value`; a value may be empty or hold more equals signs."""
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise ValueError("name=value is expected")
    return name, value


# --- help


def help_text(command: Command, program: str, width: int = 100) -> str:
    """What `--help` prints: made from the table."""
    import textwrap

    tail = " <command>" if command.subcommands else "".join(f" {shown_positional(p)}" for p in command.positionals)
    lines = [f"usage: {program}{' [options]' if command.options else ''}{tail}", ""]
    lines += textwrap.wrap(command.summary, width)
    if command.subcommands:
        lines += ["", "commands:"]
        for sub in command.subcommands:
            lines += _entry(sub.name, sub.summary, width)
    if command.positionals:
        lines.append("")
        for positional in command.positionals:
            lines += _entry(positional.name, positional.help, width)
    for title, options in sections(command):
        lines += ["", f"{title}:"]
        for option in options:
            said = f"{option.help} ({option.notes})" if option.notes else option.help
            lines += _entry(option.synopsis, said, width)
    if command.examples:
        lines += ["", "examples:"]
        lines += [f"  {example}" for example in command.examples]
    return "\n".join(lines)


def sections(command: Command) -> Iterator[tuple[str, list[Option]]]:
    shown = [option for option in command.options if not option.hidden]
    actions = [option for option in shown if option.name in command.actions]
    today = [option for option in shown if option.name not in command.actions and not option.older]
    older = [option for option in shown if option.older]
    for title, options in (("actions", actions), ("options", today), ("older forms", older)):
        if options:
            yield title, options


def shown_positional(positional: Positional) -> str:
    text = f"<{positional.name}>{' …' if positional.many else ''}"
    return text if positional.required else f"[{text}]"


def _entry(head: str, text: str, width: int) -> list[str]:
    import textwrap

    column = 30
    wrapped = textwrap.wrap(text, width - column) or [""]
    if len(head) + 4 > column:
        return [f"  {head}", *(" " * column + line for line in wrapped)]
    return [f"  {head:<{column - 2}}{wrapped[0]}", *(" " * column + line for line in wrapped[1:])]
