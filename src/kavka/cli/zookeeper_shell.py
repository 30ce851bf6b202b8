"""`kavka zookeeper-shell host:port[/path] [command]`: read and change znodes.

The commands, their output and their exit codes are those of ZooKeeper's shell; Java is not needed.
Without a command, the shell reads commands from standard input, one per line.
"""

from __future__ import annotations

import logging
import shlex
import sys
import warnings
from collections import deque
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

from kazoo import exceptions as errors
from kazoo.client import KazooClient
from kazoo.handlers.threading import KazooTimeoutError
from kazoo.protocol.states import EventType, WatchedEvent

from kavka.cli.options import Arguments, Command, Option, Positional
from kavka.cli.output import at_terminal
from kavka.cli.tool import ToolError, run

CONNECT_TIMEOUT_S = 10.0

COMMAND = Command(
    "zookeeper-shell",
    "Read and change znodes: ls, get, stat, create, set, delete, deleteall and more (help lists them). Without a "
    "command, read commands from standard input, one per line.",
    (Option("timeout", "Maximum time to wait for a connection, in ms.", "ms", int, 10_000),),
    positionals=(
        Positional("host:port[/path]", "The address of a ZooKeeper server."),
        Positional("command", "The command to run.", required=False, many=True),
    ),
    examples=(
        "kavka zookeeper-shell localhost:2181 ls /brokers/ids",
        "kavka zookeeper-shell localhost:2181 get -s /controller",
    ),
)


def main(argv: list[str]) -> int:
    # All words after the address are the shell command, including its options.
    address = next((index for index in range(len(argv)) if _is_address(argv, index)), None)
    if address is None or "--" in argv[: address + 1]:
        return run(COMMAND, argv, lambda args: _body(args, args.positionals[1:]))
    return run(COMMAND, argv[: address + 1], lambda args: _body(args, argv[address + 1 :]))


def _is_address(argv: list[str], index: int) -> bool:
    return not argv[index].startswith("-") and not (index and argv[index - 1].lstrip("-") == "timeout")


def _body(args: Arguments, words: list[str]) -> int:
    logging.getLogger("kazoo").setLevel(logging.CRITICAL)
    hosts = args.positionals[0]
    print(f"Connecting to {hosts}", flush=True)
    shell = Shell(hosts, args["timeout"] / 1000)
    try:
        if words:
            return 0 if shell.execute(words) else 1
        return shell.read_commands()
    finally:
        shell.close()


class _UsageError(Exception):
    """A command has invalid arguments. `str()` is an optional message."""


class Shell:
    """Owns the ZooKeeper session and the command history."""

    def __init__(self, hosts: str, timeout_s: float = CONNECT_TIMEOUT_S) -> None:
        self.hosts = hosts
        self._client: Any = None
        self._timeout_s = timeout_s
        self._history: list[str] = []
        self._connect(hosts)

    def _connect(self, hosts: str) -> None:
        try:
            client = KazooClient(hosts=hosts, timeout=30.0)
            with warnings.catch_warnings():
                # The first command reports a chroot that does not exist.
                warnings.simplefilter("ignore")
                client.start(timeout=self._timeout_s)
        except KazooTimeoutError:
            raise ToolError(f"no ZooKeeper server is reachable at {hosts}") from None
        except (errors.KazooException, ValueError) as error:
            raise ToolError(f"{hosts}: {error}") from None
        self.close()
        self._client, self.hosts = client, hosts
        print("\nWATCHER::\n\nWatchedEvent state:SyncConnected type:None path:null", flush=True)

    def close(self) -> None:
        if self._client is not None:
            self._client.stop()
            self._client.close()
            self._client = None

    # --- the command loop

    def read_commands(self) -> int:
        """Execute commands from standard input. Return 0 on a terminal or after Ctrl-C, else the
        exit code of the last command."""
        is_interactive = sys.stdin.isatty() and at_terminal()
        if is_interactive:
            import readline

            readline.set_completer_delims(" ")
            readline.set_completer(self._complete)
            readline.parse_and_bind("tab: complete")
            print("Welcome to ZooKeeper! help lists the commands, quit ends the shell.")
        succeeded = True
        while True:
            try:
                line = input(f"[zk: {self.hosts}(CONNECTED) {len(self._history)}] " if is_interactive else "")
            except EOFError:
                return 0 if is_interactive or succeeded else 1
            except KeyboardInterrupt:
                print()
                return 0
            if not line.strip():
                continue
            self._history.append(line)
            try:
                words = _split(line)
            except ValueError as error:
                print(f"{error}: {line}", file=sys.stderr)
                succeeded = False
                continue
            if words[0] in ("quit", "close"):
                return 0 if is_interactive or succeeded else 1
            succeeded = self.execute(words)
            sys.stdout.flush()

    def _complete(self, text: str, state: int) -> str | None:
        try:
            if text.startswith("/"):
                parent, _, start = text.rpartition("/")
                names = sorted(self._client.get_children(parent or "/"))
                candidates = [f"{parent}/{name}" for name in names if name.startswith(start)]
            else:
                candidates = [name for name in sorted(COMMANDS) if name.startswith(text)]
        except errors.KazooException:
            return None
        return candidates[state] if state < len(candidates) else None

    def execute(self, words: list[str]) -> bool:
        """Execute a command. On failure print the error on standard error and return False."""
        name, arguments = words[0], words[1:]
        if name not in COMMANDS:
            print(f"{usage()}\nCommand not found: Command not found {name}", file=sys.stderr)
            return False
        synopsis, function = COMMANDS[name]
        path = next((word for word in arguments if word.startswith("/")), "")
        try:
            function(self, _Words(arguments))
            return True
        except _UsageError as error:
            message = str(error)
            print(f"{message}\n" if message else "", f"{name} {synopsis}".rstrip(), sep="", file=sys.stderr)
        except errors.KazooException as error:
            print(_explain(error, path), file=sys.stderr)
        return False

    # --- the commands

    def ls(self, words: _Words) -> None:
        flags, (path,) = words.parse(flags="swR", min_count=1)
        if "R" in flags:
            self._print_descendants(path)
            return
        children = sorted(self._client.get_children(path, watch=self._print_event if "w" in flags else None))
        print(f"[{', '.join(children)}]")
        if "s" in flags:
            self._print_stat(self._client.exists(path))

    def _print_descendants(self, path: str) -> None:
        """Print the path and all its descendants, level by level as ZooKeeper's shell does."""
        pending = deque([path])
        while pending:
            parent = pending.popleft()
            children = sorted(self._client.get_children(parent))
            print(parent)
            pending.extend(f"{'' if parent == '/' else parent}/{child}" for child in children)

    def get(self, words: _Words) -> None:
        flags, (path,) = words.parse(flags="sw", min_count=1)
        data, stat = self._client.get(path, watch=self._print_event if "w" in flags else None)
        print("null" if data is None else data.decode("utf-8", "replace"))
        if "s" in flags:
            self._print_stat(stat)

    def stat(self, words: _Words) -> None:
        flags, (path,) = words.parse(flags="w", min_count=1)
        stat = self._client.exists(path, watch=self._print_event if "w" in flags else None)
        if stat is None:
            raise errors.NoNodeError
        self._print_stat(stat)

    def create(self, words: _Words) -> None:
        flags, values = words.parse(flags="sec", min_count=1, max_count=2)
        data = values[1].encode() if len(values) > 1 else None
        if data is None:
            # kazoo's `create` supports only empty data, which differs from no data.
            path = _create_without_data(self._client, values[0], "e" in flags, "s" in flags)
        else:
            path = self._client.create(values[0], data, ephemeral="e" in flags, sequence="s" in flags)
        print(f"Created {path}", file=sys.stderr)

    def set(self, words: _Words) -> None:
        flags, values = words.parse(flags="s", value_flags="v", min_count=2)
        stat = self._client.set(values[0], values[1].encode(), int(words.value("v", "-1")))
        if "s" in flags:
            self._print_stat(stat)

    def delete(self, words: _Words) -> None:
        _flags, (path,) = words.parse(value_flags="v", min_count=1)
        self._client.delete(path, int(words.value("v", "-1")))

    def deleteall(self, words: _Words) -> None:
        _flags, (path,) = words.parse(value_flags="b", min_count=1)
        if path == "/":
            raise _UsageError("the root cannot be deleted")
        if self._client.exists(path) is None:
            raise errors.NoNodeError
        self._client.delete(path, recursive=True)

    def get_all_children_number(self, words: _Words) -> None:
        _flags, (path,) = words.parse(min_count=1)
        print(len(self._descendants(path)))

    def get_ephemerals(self, words: _Words) -> None:
        """Print the ephemeral znodes of this session. kazoo has no GetEphemerals request."""
        _flags, values = words.parse(min_count=0, max_count=1)
        session = self._client.client_id[0]
        ephemerals = []
        for path in self._descendants(values[0] if values else "/"):
            stat = self._client.exists(path)
            if stat is not None and stat.ephemeralOwner == session:
                ephemerals.append(path)
        print(f"[{', '.join(ephemerals)}]")

    def _descendants(self, path: str) -> list[str]:
        paths: list[str] = []
        for child in sorted(self._client.get_children(path)):
            child_path = f"{'' if path == '/' else path}/{child}"
            paths += [child_path, *self._descendants(child_path)]
        return paths

    def sync(self, words: _Words) -> None:
        _flags, (path,) = words.parse(min_count=1)
        self._client.sync(path)
        print("Sync is OK")

    def connect(self, words: _Words) -> None:
        _flags, values = words.parse(min_count=0, max_count=1)
        try:
            self._connect(values[0] if values else self.hosts)
        except ToolError as error:
            raise _UsageError(str(error)) from None

    def get_acl(self, words: _Words) -> None:
        flags, (path,) = words.parse(flags="s", min_count=1)
        acls, stat = self._client.get_acls(path)
        for acl in acls:
            print(f"'{acl.id.scheme},'{acl.id.id}\n: {_permissions(acl.perms)}")
        if "s" in flags:
            self._print_stat(stat)

    def history(self, _words: _Words) -> None:
        for number, line in list(enumerate(self._history))[-11:]:
            print(f"{number} - {line}")

    def version(self, _words: _Words) -> None:
        version = self._client.command(b"srvr").partition("Zookeeper version: ")[2].partition("\n")[0]
        print(f"ZooKeeper version: {version or 'unknown'}")

    def help(self, _words: _Words) -> None:
        print(usage())

    def _print_event(self, event: WatchedEvent) -> None:
        if event.type != EventType.NONE:
            event_types = {"CREATED": "NodeCreated", "DELETED": "NodeDeleted", "CHANGED": "NodeDataChanged"}
            event_type = event_types.get(event.type, "NodeChildrenChanged")
            print(f"\nWATCHER::\n\nWatchedEvent state:SyncConnected type:{event_type} path:{event.path}", flush=True)

    def _print_stat(self, stat: Any) -> None:
        print(f"cZxid = {stat.czxid:#x}")
        print(f"ctime = {_date_text(stat.ctime)}")
        print(f"mZxid = {stat.mzxid:#x}")
        print(f"mtime = {_date_text(stat.mtime)}")
        print(f"pZxid = {stat.pzxid:#x}")
        print(f"cversion = {stat.cversion}")
        print(f"dataVersion = {stat.version}")
        print(f"aclVersion = {stat.aversion}")
        print(f"ephemeralOwner = {stat.ephemeralOwner:#x}")
        print(f"dataLength = {stat.dataLength}")
        print(f"numChildren = {stat.numChildren}")


class _Words:
    """The arguments of a command."""

    def __init__(self, words: list[str]) -> None:
        self._words = words
        self._values: dict[str, str] = {}

    def parse(
        self, *, flags: str = "", value_flags: str = "", min_count: int, max_count: int | None = None
    ) -> tuple[set[str], list[str]]:
        """Return the flags and the values. Raise _UsageError if they do not match the command."""
        flags_present: set[str] = set()
        values: list[str] = []
        remaining = deque(self._words)
        while remaining:
            word = remaining.popleft()
            if len(word) == 2 and word[0] == "-" and word[1] in value_flags:
                if not remaining or not remaining[0].lstrip("-").isdigit():
                    raise _UsageError
                self._values[word[1]] = remaining.popleft()
            elif len(word) >= 2 and word[0] == "-" and not values:
                if not set(word[1:]) <= set(flags):
                    raise _UsageError(f"Unrecognized option: {word}")
                flags_present |= set(word[1:])
            else:
                values.append(word)
        if not min_count <= len(values) <= (min_count if max_count is None else max_count):
            raise _UsageError
        if min_count and not values[0].startswith("/"):
            raise _UsageError("Path must start with / character")
        return flags_present, values

    def value(self, name: str, default: str) -> str:
        return self._values.get(name, default)


COMMANDS: dict[str, tuple[str, Callable[[Shell, _Words], None]]] = {
    "connect": ("host:port", Shell.connect),
    "create": ("[-s] [-e] path [data]", Shell.create),
    "delete": ("[-v version] path", Shell.delete),
    "deleteall": ("path", Shell.deleteall),
    "get": ("[-s] [-w] path", Shell.get),
    "getAcl": ("[-s] path", Shell.get_acl),
    "getAllChildrenNumber": ("path", Shell.get_all_children_number),
    "getEphemerals": ("path", Shell.get_ephemerals),
    "help": ("", Shell.help),
    "history": ("", Shell.history),
    "ls": ("[-s] [-w] [-R] path", Shell.ls),
    "quit": ("", lambda _shell, _words: None),
    "rmr": ("path", Shell.deleteall),
    "set": ("[-s] [-v version] path data", Shell.set),
    "stat": ("[-w] path", Shell.stat),
    "sync": ("path", Shell.sync),
    "version": ("", Shell.version),
}


def usage() -> str:
    lines = ["ZooKeeper -server host:port cmd args"]
    lines += [f"\t{name} {synopsis}".rstrip() for name, (synopsis, _function) in COMMANDS.items() if name != "rmr"]
    return "\n".join(lines)


def _split(line: str) -> list[str]:
    """Split a line into words. A quote at the start of a word joins words. A quote inside a word,
    as in JSON, is a normal character. Raise ValueError if a closing quote is missing."""
    words: list[str] = []
    for piece in line.split():
        if words and words[-1][:1] in ("'", '"') and not _is_closed(words[-1]):
            words[-1] += " " + piece
        else:
            words.append(piece)
    if words and words[-1][:1] in ("'", '"') and not _is_closed(words[-1]):
        raise ValueError("missing closing quote")
    return [shlex.split(word)[0] if word[:1] in ("'", '"') and len(word) > 2 else word for word in words]


def _is_closed(word: str) -> bool:
    return len(word) > 1 and word[-1] == word[0]


def _explain(error: Exception, path: str) -> str:
    """Return the message of ZooKeeper's shell for an error."""
    match error:
        case errors.NoNodeError():
            return f"Node does not exist: {path}"
        case errors.NodeExistsError():
            return f"Node already exists: {path}"
        case errors.NotEmptyError():
            return f"Node not empty: {path}"
        case errors.BadVersionError():
            return f"version No is not valid : {path}"
        case errors.NoChildrenForEphemeralsError():
            return f"Ephemerals cannot have children: {path}"
        case errors.NoAuthError():
            return f"Insufficient permission : {path}"
        case errors.ConnectionLoss() | errors.SessionExpiredError() | errors.ConnectionClosedError():
            return "The connection to ZooKeeper is lost"
    return f"{type(error).__name__.removesuffix('Error')}: {error or path}"


def _date_text(milliseconds: int) -> str:
    """Format a time as Java prints a date, in UTC."""
    return datetime.fromtimestamp(milliseconds / 1000, UTC).strftime("%a %b %d %H:%M:%S UTC %Y")


def _permissions(bits: int) -> str:
    return "".join(letter for bit, letter in ((4, "c"), (8, "d"), (1, "r"), (2, "w"), (16, "a")) if bits & bit)


def _create_without_data(client: Any, path: str, ephemeral: bool, sequence: bool) -> str:
    from kazoo.protocol.serialization import Create
    from kazoo.security import OPEN_ACL_UNSAFE

    result = client.handler.async_result()
    flags = (1 if ephemeral else 0) | (2 if sequence else 0)
    client._call(Create(client.chroot + path, None, OPEN_ACL_UNSAFE, flags), result)
    return str(client.unchroot(result.get()))
