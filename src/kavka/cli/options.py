"""Option tables of tools, and the parser of command lines.

The parser, `--help`, docs/tools.md and the shell completion are derived from the tables.
The parser accepts the same command lines as Kafka's tools: `--name value` and `--name=value`, one
or two dashes, any unambiguous prefix of a name, values that begin with a dash, and extra words,
which are ignored by tools without positionals.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any


class UsageError(Exception):
    """The command line is invalid. `str()` is a one-line message for the user."""


@dataclass(frozen=True, slots=True)
class Option:
    """An option. `name` has no dashes; without a `metavar` the option is a flag."""

    name: str
    help: str
    metavar: str = ""
    type: Callable[[str], Any] = str
    default: Any = None
    aliases: tuple[str, ...] = ()
    repeated: bool = False
    """May occur several times; the value is a list."""
    separator: str = ""
    """Splits the value; the value is a list."""
    several: bool = False
    """Takes all words up to the next option: `--producer-props acks=1 linger.ms=5`. The value is a
    list."""
    optional: bool = False
    """The value may be omitted. It is then ""."""
    required: bool = False
    choices: tuple[str, ...] = ()
    ignore_case: bool = False
    """Choices match in any case; the value has the spelling of the table."""
    default_text: str = ""
    """The default as text in the help, if it differs from `default`."""
    deprecated: bool = False
    """Accepted for existing command lines, and listed separately in the help."""
    hidden: bool = False
    completes: str = ""
    """Completion of the value: file, directory, topic or group. Choices are always completed."""

    @property
    def names(self) -> tuple[str, ...]:
        return (self.name, *self.aliases)

    @property
    def is_list(self) -> bool:
        return self.repeated or self.several or bool(self.separator)

    @property
    def absent_value(self) -> Any:
        """The value if the option is absent."""
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
        """The choices, the default and other properties, as text for the help."""
        notes = []
        if self.choices:
            notes.append(f"one of {', '.join(self.choices)}")
        if self.required:
            notes.append("required")
        if self.repeated:
            notes.append("may be repeated")
        default = self.default_text or ("" if self.default is None or isinstance(self.default, bool) else self.default)
        if default != "":
            notes.append(f"default: {default}")
        return "; ".join(notes)


@dataclass(frozen=True, slots=True)
class Positional:
    name: str
    help: str
    required: bool = True
    many: bool = False


@dataclass(frozen=True, slots=True)
class Command:
    """A tool, or a subcommand (`kafka-transactions describe`). A subcommand also has the options of
    its tool."""

    name: str
    summary: str
    options: tuple[Option, ...] = ()
    actions: tuple[str, ...] = ()
    """The options of which exactly one must be present."""
    positionals: tuple[Positional, ...] = ()
    subcommands: tuple[Command, ...] = ()
    examples: tuple[str, ...] = ()
    error: str = ""
    """The prefix of error messages, if Kafka's tool has a specific prefix."""

    def subcommand(self, name: str) -> Command | None:
        return next((sub for sub in self.subcommands if sub.name == name), None)


HELP = Option("help", "Print this help and exit.", aliases=("h",))
VERSION = Option("version", "Print the version and exit.")


@dataclass(slots=True)
class Arguments:
    """A parsed command line. `args["topic"]` is the value or the default of an option. `"topic" in
    args` is whether the option is present. `order` has the name of each option as often, and in the
    order, as it is on the command line."""

    command: Command
    values: dict[str, Any] = field(default_factory=dict)
    present: set[str] = field(default_factory=set)
    order: list[str] = field(default_factory=list)
    positionals: list[str] = field(default_factory=list)
    subcommand: str = ""

    def __getitem__(self, name: str) -> Any:
        return self.values[name]

    def __contains__(self, name: str) -> bool:
        return name in self.present

    def first(self, *names: str) -> Any:
        """Return the value of the first of these options that is present, else None."""
        return next((self.values[name] for name in names if name in self.present), None)

    def action(self) -> str:
        return next(name for name in self.command.actions if name in self.present)

    # --- checks with Kafka's messages

    def require(self, *names: str) -> None:
        """Raise UsageError if any of these options is absent."""
        for name in names:
            if name not in self.present:
                raise UsageError(f'Missing required argument "[{name}]"')

    def forbid(self, name: str, *others: str) -> None:
        """Raise UsageError if `name` and any of `others` are present."""
        if name in self.present:
            for other in others:
                if other in self.present:
                    raise UsageError(f'Option "[{name}]" can\'t be used with option "[{other}]"')


class _Names:
    """The options by name, and the lookup by prefix."""

    def __init__(self, options: Iterable[Option]) -> None:
        self.by_name: dict[str, Option] = {}
        for option in options:
            for name in option.names:
                self.by_name[name] = option

    def find(self, text: str) -> Option | None:
        """Find an option by name or prefix. Raise UsageError if the prefix is ambiguous."""
        if text in self.by_name:
            return self.by_name[text]
        if not text:
            return None
        matches = [name for name, option in self.by_name.items() if name.startswith(text) and not option.hidden]
        if len({self.by_name[name].name for name in matches}) > 1:
            candidates = ", ".join(f"--{name}" for name in sorted(matches))
            raise UsageError(f"--{text} is ambiguous: {candidates}")
        return self.by_name[matches[0]] if matches else None

    def suggestion(self, text: str) -> str:
        """Return a suggestion for an unknown option, as the end of an error message."""
        from difflib import get_close_matches

        names = [name for name, option in self.by_name.items() if not option.hidden]
        matches = get_close_matches(text, names, n=1) or [name for name in names if name in text or text in name]
        return f"; did you mean --{matches[0]}?" if matches else ""

    def is_option(self, token: str) -> bool:
        """Return whether a token is an option and not a value."""
        if len(token) < 2 or token[0] != "-" or _is_number(token):
            return False
        if token == "--":
            return True
        try:
            return token.startswith("--") or self.find(token[1:].partition("=")[0]) is not None
        except UsageError:
            return True


def parse(command: Command, argv: Sequence[str]) -> Arguments:
    """Parse a command line. Raise UsageError if it is invalid.

    With `--help` or `--version`, missing options, actions and positionals are not errors.
    """
    parser = _Parser(command)
    parser.read(list(argv))
    return parser.finish()


class _Parser:
    def __init__(self, command: Command) -> None:
        self.args = Arguments(command)
        self.options: list[Option] = [*command.options, HELP, VERSION]
        self.names = _Names(self.options)

    def read(self, tokens: list[str]) -> None:
        tokens.reverse()
        options_ended = False
        while tokens:
            token = tokens.pop()
            if options_ended or len(token) < 2 or token[0] != "-":
                self._add_positional(token)
            elif token == "--":
                options_ended = True
            else:
                self._read_option(token, tokens)

    def _add_positional(self, token: str) -> None:
        args = self.args
        if args.command.subcommands:
            subcommand = args.command.subcommand(token)
            if subcommand is None:
                names = ", ".join(sub.name for sub in args.command.subcommands)
                raise UsageError(f"unknown command '{token}'; it must be one of {names}")
            args.command, args.subcommand = subcommand, token
            self.options += [option for option in subcommand.options if option.name not in self.names.by_name]
            self.names = _Names(self.options)
        else:
            args.positionals.append(token)

    def _read_option(self, token: str, next_tokens: list[str]) -> None:
        """Read an option and its value. `next_tokens` are in reverse order."""
        text, equals, value = token.lstrip("-").partition("=")
        option = self.names.find(text)
        if option is None:
            if _is_number(token):
                self._add_positional(token)
                return
            raise UsageError(f"{text or token} is not a recognized option{self.names.suggestion(text)}")
        if not option.metavar:
            if equals:
                raise UsageError(f"Option {option.name} takes no value, but got '{value}'")
            self.args.values[option.name] = True
        else:
            self._set_values(option, [value] if equals else self._take_values(option, next_tokens))
        self.args.present.add(option.name)
        self.args.order.append(option.name)

    def _take_values(self, option: Option, next_tokens: list[str]) -> list[str]:
        values: list[str] = []
        if option.several:
            while next_tokens and not self.names.is_option(next_tokens[-1]):
                values.append(next_tokens.pop())
        elif option.optional:
            has_value = next_tokens and not self.names.is_option(next_tokens[-1])
            values.append(next_tokens.pop() if has_value else "")
        elif next_tokens:
            values.append(next_tokens.pop())
        if not values:
            raise UsageError(f"Option {option.name} requires an argument")
        return values

    def _set_values(self, option: Option, texts: list[str]) -> None:
        if option.separator:
            texts = [piece for text in texts for piece in text.split(option.separator)]
        values = [_convert(option, text) for text in texts]
        if option.repeated or option.several:
            self.args.values.setdefault(option.name, []).extend(values)
        elif option.name in self.args.present:
            raise UsageError(f"Found multiple arguments for option {option.name}, but you asked for only one")
        else:
            self.args.values[option.name] = values if option.separator else values[0]

    def finish(self) -> Arguments:
        args = self.args
        for option in self.options:
            args.values.setdefault(option.name, option.absent_value)
        if "help" in args or "version" in args:
            return args
        command = args.command
        if command.subcommands:
            raise UsageError(f"a command is required: {', '.join(sub.name for sub in command.subcommands)}")
        if command.actions and sum(name in args for name in command.actions) != 1:
            actions = [f"--{name}" for name in command.actions]
            listed = ", ".join(actions[:-1]) + f" or {actions[-1]}" if len(actions) > 1 else actions[0]
            raise UsageError(f"Command must include exactly one action: {listed}")
        args.require(*(option.name for option in self.options if option.required))
        required = [positional.name for positional in command.positionals if positional.required]
        if len(args.positionals) < len(required):
            raise UsageError(f"{required[len(args.positionals)]} is missing")
        if command.positionals and not command.positionals[-1].many:
            extra = args.positionals[len(command.positionals) :]
            if extra:
                raise UsageError(f"unexpected argument '{extra[0]}'")
        return args


def _convert(option: Option, text: str) -> Any:
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
        detail = "" if option.type in (int, float) else f": {error}"
        raise UsageError(f"Cannot parse argument '{text}' of option {option.name}{detail}") from None


def _is_number(token: str) -> bool:
    return token[1:2].isdigit() or (token[1:2] == "." and token[2:3].isdigit())


# --- help


def help_text(command: Command, program: str, width: int = 100) -> str:
    """Return the text of `--help`."""
    import textwrap

    tail = " <command>" if command.subcommands else "".join(f" {positional_text(p)}" for p in command.positionals)
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
            description = f"{option.help} ({option.notes})" if option.notes else option.help
            lines += _entry(option.synopsis, description, width)
    if command.examples:
        lines += ["", "examples:"]
        lines += [f"  {example}" for example in command.examples]
    return "\n".join(lines)


def sections(command: Command) -> Iterator[tuple[str, list[Option]]]:
    visible = [option for option in command.options if not option.hidden]
    actions = [option for option in visible if option.name in command.actions]
    current = [option for option in visible if option.name not in command.actions and not option.deprecated]
    deprecated = [option for option in visible if option.deprecated]
    for title, options in (("actions", actions), ("options", current), ("deprecated options", deprecated)):
        if options:
            yield title, options


def positional_text(positional: Positional) -> str:
    text = f"<{positional.name}>{' …' if positional.many else ''}"
    return text if positional.required else f"[{text}]"


def _entry(head: str, text: str, width: int) -> list[str]:
    import textwrap

    column = 30
    wrapped = textwrap.wrap(text, width - column) or [""]
    if len(head) + 4 > column:
        return [f"  {head}", *(" " * column + line for line in wrapped)]
    return [f"  {head:<{column - 2}}{wrapped[0]}", *(" " * column + line for line in wrapped[1:])]
