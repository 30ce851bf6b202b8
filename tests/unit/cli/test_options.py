"""The parser accepts the same command lines as Kafka's tools."""

from __future__ import annotations

import subprocess

import pytest

from kavka.cli import completion
from kavka.cli.catalogue import TOOLS, table_of
from kavka.cli.options import Command, Option, Positional, UsageError, help_text, parse


def key_value(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals:
        raise ValueError("expected name=value")
    return name, value


TABLE = Command(
    "example",
    "An example.",
    (
        Option("list", "List."),
        Option("alter", "Change."),
        Option("topic", "Which.", "topic"),
        Option("topic-id", "Which, by id.", "id"),
        Option("partitions", "How many.", "number", int, aliases=("partition",)),
        Option("partition-limit", "How many at a time.", "number", int),
        Option("property", "A pair.", "name=value", key_value, repeated=True),
        Option("props", "Pairs.", "name=value", several=True),
        Option("states", "Which.", "state", optional=True),
        Option("brokers", "Which.", "ids", int, separator=","),
        Option("kind", "Which.", "kind", choices=("PREFERRED", "UNCLEAN"), ignore_case=True),
        Option("time", "When.", "time", int, -1),
        Option("secret", "Not shown.", hidden=True),
    ),
)


def test_value_follows_the_option_or_an_equals_sign():
    assert parse(TABLE, ["--topic", "a"])["topic"] == "a"
    assert parse(TABLE, ["--topic=a=b"])["topic"] == "a=b"


def test_one_dash_is_accepted():
    args = parse(TABLE, ["-alter", "-topic", "x"])
    assert args["alter"] and args["topic"] == "x"


def test_unambiguous_prefix_is_accepted():
    assert parse(TABLE, ["--al"])["alter"]
    assert parse(TABLE, ["--partition", "2"])["partitions"] == 2
    assert parse(TABLE, ["--topic", "x"])["topic"] == "x"


def test_ambiguous_prefix_is_rejected():
    with pytest.raises(UsageError, match="--partition, --partition-limit, --partitions"):
        parse(TABLE, ["--part", "2"])


def test_value_may_start_with_a_dash():
    assert parse(TABLE, ["--time", "-2"])["time"] == -2
    assert parse(TABLE, ["--topic", "--list"])["topic"] == "--list"


def test_absent_options_have_defaults():
    args = parse(TABLE, [])
    assert (args["time"], args["list"], args["topic"], args["property"]) == (-1, False, None, [])
    assert "time" not in args


def test_only_repeated_options_may_occur_twice():
    assert parse(TABLE, ["--property", "a=1", "--property", "b="])["property"] == [("a", "1"), ("b", "")]
    with pytest.raises(UsageError, match="Found multiple arguments for option topic"):
        parse(TABLE, ["--topic", "a", "--topic", "b"])
    assert parse(TABLE, ["--list", "--list"])["list"]


def test_option_with_several_values_ends_at_the_next_option():
    args = parse(TABLE, ["--props", "acks=1", "linger.ms=5", "--topic", "x"])
    assert args["props"] == ["acks=1", "linger.ms=5"]
    assert args["topic"] == "x"


def test_optional_value_may_be_omitted():
    assert parse(TABLE, ["--states", "--list"])["states"] == ""
    assert parse(TABLE, ["--states", "Stable"])["states"] == "Stable"
    assert parse(TABLE, [])["states"] is None


def test_lists_and_choices_are_converted():
    assert parse(TABLE, ["--brokers", "0,1,2"])["brokers"] == [0, 1, 2]
    assert parse(TABLE, ["--kind", "preferred"])["kind"] == "PREFERRED"
    with pytest.raises(UsageError, match="one of PREFERRED, UNCLEAN"):
        parse(TABLE, ["--kind", "other"])


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (["--topci", "x"], "topci is not a recognized option; did you mean --topic?"),
        (["--topic"], "Option topic requires an argument"),
        (["--partitions", "many"], "Cannot parse argument 'many' of option partitions"),
        (["--list=yes"], "Option list takes no value"),
        (["--property", "a"], "expected name=value"),
        (["--props", "--list"], "Option props requires an argument"),
    ],
)
def test_usage_error_is_one_line(argv, words):
    with pytest.raises(UsageError, match=words.replace("?", r"\?")) as error:
        parse(TABLE, argv)
    assert "\n" not in str(error.value)


def test_exactly_one_action_is_required():
    table = Command("t", "T.", TABLE.options, actions=("list", "alter"))
    assert parse(table, ["--alter"]).action() == "alter"
    for argv in ([], ["--list", "--alter"]):
        with pytest.raises(UsageError, match="exactly one action: --list or --alter"):
            parse(table, argv)


def test_positionals_are_collected_and_counted():
    assert parse(TABLE, ["1048576", "--list", "-5"]).positionals == ["1048576", "-5"]
    table = Command("t", "T.", positionals=(Positional("file", "A file."),))
    assert parse(table, ["--", "-x"]).positionals == ["-x"]
    with pytest.raises(UsageError, match="file is missing"):
        parse(table, [])
    with pytest.raises(UsageError, match="unexpected argument 'b'"):
        parse(table, ["a", "b"])


def test_subcommand_has_the_options_of_its_tool():
    sub = Command("describe", "Describe.", (Option("id", "Which.", "id", required=True),))
    table = Command("t", "T.", (Option("server", "Where.", "host", required=True),), subcommands=(sub,))
    args = parse(table, ["--server", "x", "describe", "--id", "7"])
    assert (args.subcommand, args["server"], args["id"]) == ("describe", "x", "7")
    for argv, words in ((["--server", "x"], "required: describe"), (["frob"], "unknown command 'frob'")):
        with pytest.raises(UsageError, match=words):
            parse(table, argv)
    with pytest.raises(UsageError, match=r'Missing required argument "\[id\]"'):
        parse(table, ["--server", "x", "describe"])


def test_help_lists_all_options_except_hidden_ones():
    shown = help_text(TABLE, "kavka example")
    assert "--partitions, --partition <number>" in shown
    assert "--secret" not in shown
    assert all(len(line) <= 100 for line in shown.splitlines())


def test_help_needs_no_action():
    assert "help" in parse(Command("t", "T.", actions=("list",)), ["--help"])


def test_every_option_of_every_tool_has_help():
    for tool in TOOLS:
        command = table_of(tool)
        for option in (*command.options, *(o for sub in command.subcommands for o in sub.options)):
            assert option.help.endswith("."), f"{tool.name} --{option.name}"
        assert {*command.actions} <= {option.name for option in command.options}


@pytest.mark.parametrize("shell", ["bash", "zsh"])
def test_completion_script_is_valid_and_lists_every_tool(shell):
    text = completion.script(shell)
    assert subprocess.run(["bash", "-n"], input=text, text=True, check=False).returncode == 0
    for tool in TOOLS:
        assert f" {tool.name}" in text


def complete(*words: str) -> list[str]:
    quoted = " ".join(f"'{word}'" for word in words)
    script = completion.script("bash") + f"\nCOMP_WORDS=({quoted})\nCOMP_CWORD={len(words) - 1}\n_kavka\n"
    script += 'printf "%s\\n" "${COMPREPLY[@]}"\n'
    shown = subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=True).stdout
    return shown.split()


def test_bash_completes_tools_and_options():
    assert complete("kavka", "topi") == ["topics"]
    assert complete("kavka", "topics", "--under-") == ["--under-replicated-partitions", "--under-min-isr-partitions"]
    assert complete("kafka-topics.sh", "--under-r") == ["--under-replicated-partitions"]
