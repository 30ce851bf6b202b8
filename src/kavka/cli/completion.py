"""`kavka completion bash|zsh`: a completion script for tools, options and values, generated from
the option tables."""

from __future__ import annotations

from kavka.cli.catalogue import TOOLS, Tool, table_of
from kavka.cli.options import HELP, Arguments, Command, Option, Positional
from kavka.cli.tool import ToolError, run

SHELLS = ("bash", "zsh")

COMMAND = Command(
    "completion",
    "Print a script that makes the shell complete the tools' names, options and values. "
    "In ~/.bashrc: source <(kavka completion bash). In ~/.zshrc: source <(kavka completion zsh).",
    positionals=(Positional("shell", "bash or zsh"),),
    examples=("source <(kavka completion bash)",),
)


def main(argv: list[str]) -> int:
    return run(COMMAND, argv, _body)


def _body(args: Arguments) -> None:
    shell = args.positionals[0]
    if shell not in SHELLS:
        raise ToolError(f"'{shell}' is not supported; the supported shells are {' and '.join(SHELLS)}")
    print(script(shell), end="")


def script(shell: str) -> str:
    """Return the completion script. The script of zsh is that of bash, run through bashcompinit."""
    tools = [(tool, table_of(tool)) for tool in TOOLS]
    header = "autoload -U +X bashcompinit && bashcompinit\n" if shell == "zsh" else ""
    options = "\n".join(_options_case(tool, command) for tool, command in tools)
    values = "\n".join(line for tool, command in tools for line in _value_cases(tool, command))
    names = " ".join(tool.name for tool in TOOLS)
    scripts = " ".join(f"{script}{end}" for tool in TOOLS for script in tool.script_names for end in ("", ".sh"))
    return _TEMPLATE.format(header=header, names=names, options=options, values=values, scripts=scripts)


_TEMPLATE = """\
{header}_kavka_server() {{
    local i
    for ((i = 1; i < ${{#COMP_WORDS[@]}}; i++)); do
        case "${{COMP_WORDS[i]}}" in
            --bootstrap-server|--broker-list) echo "${{COMP_WORDS[i + 1]}}"; return ;;
        esac
    done
    echo localhost:9092
}}

_kavka() {{
    local current previous tool options kind
    current="${{COMP_WORDS[COMP_CWORD]}}"
    previous="${{COMP_WORDS[COMP_CWORD - 1]}}"
    COMPREPLY=()
    tool="${{COMP_WORDS[0]##*/}}"
    if [ "$tool" = kavka ]; then
        if [ "$COMP_CWORD" -eq 1 ]; then
            COMPREPLY=($(compgen -W "{names} --help --version" -- "$current"))
            return
        fi
        tool="${{COMP_WORDS[1]}}"
    fi
    tool="${{tool%.sh}}"
    tool="${{tool#kafka-}}"
    kind=
    case "$tool $previous" in
{values}
    esac
    case "$kind" in
        file) COMPREPLY=($(compgen -f -- "$current")); return ;;
        directory) COMPREPLY=($(compgen -d -- "$current")); return ;;
        topic)
            options="$(kavka topics --list --timeout 2000 --bootstrap-server "$(_kavka_server)" 2>/dev/null)"
            COMPREPLY=($(compgen -W "$options" -- "$current"))
            return ;;
        group)
            options="$(kavka consumer-groups --list --timeout 2000 --bootstrap-server "$(_kavka_server)" 2>/dev/null)"
            COMPREPLY=($(compgen -W "$options" -- "$current"))
            return ;;
        "words "*) COMPREPLY=($(compgen -W "${{kind#words }}" -- "$current")); return ;;
        value) return ;;
    esac
    case "$tool" in
{options}
        *) options="" ;;
    esac
    case "$current" in
        -*) COMPREPLY=($(compgen -W "$options" -- "$current")) ;;
        *) COMPREPLY=($(compgen -W "$options" -- "$current") $(compgen -f -- "$current")) ;;
    esac
}}

complete -o default -F _kavka kavka {scripts}
"""


def _patterns(tool: Tool) -> list[str]:
    return list(dict.fromkeys((tool.name, *tool.aliases, *(s.removeprefix("kafka-") for s in tool.script_names))))


def _all_options(command: Command) -> list[Option]:
    options = {option.name: option for option in command.options}
    for subcommand in command.subcommands:
        for option in subcommand.options:
            options.setdefault(option.name, option)
    return [option for option in options.values() if not option.hidden]


def _options_case(tool: Tool, command: Command) -> str:
    words = [sub.name for sub in command.subcommands]
    words += [f"--{option.name}" for option in (*_all_options(command), HELP)]
    if tool.name == "completion":
        words += SHELLS
    return f'        {"|".join(_patterns(tool))}) options="{" ".join(words)}" ;;'


def _value_cases(tool: Tool, command: Command) -> list[str]:
    lines = []
    for option in _all_options(command):
        if not option.metavar:
            continue
        kind = f"words {' '.join(option.choices)}" if option.choices else option.completes or "value"
        pattern = "|".join(f'"{name} --{alias}"' for name in _patterns(tool) for alias in option.names)
        lines.append(f'        {pattern}) kind="{kind}" ;;')
    return lines
