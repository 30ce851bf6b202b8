"""`kavka console`: the web page of a cluster; `kavka console-user`: who may log in there.

`kavka console producer|consumer` is console-producer and console-consumer, written in two words: `bin/kafka-console
producer.sh …`, as some documents have it, thus works too.
"""

from __future__ import annotations

import logging
import os
import sys
from importlib import import_module
from pathlib import Path

from kavka.cli.connecting import read_properties
from kavka.cli.options import Arguments, Command, Option, UsageError
from kavka.cli.tool import ToolError, run

COMMAND = Command(
    "console",
    "Show a cluster, or several, on a web page: http://localhost:9080 unless told otherwise. "
    "With 'producer' or 'consumer' as its first word it is console-producer or console-consumer.",
    (
        Option("bootstrap-server", "Brokers of the cluster: host:port, separated by commas.", "server to connect to"),
        Option("command-config", "A file with settings of the clients for it.", "file", completes="file"),
        Option("connect-url", "Connect workers of the cluster: http://host:8083, separated by commas.", "address"),
        Option("config", "A file of several clusters: [name], then settings of its clients.", "file", completes="file"),
        Option("host", "The address to listen at. Any but localhost takes --users.", "address", default="localhost"),
        Option("port", "The port to listen at; 0 for any that is free.", "port", int, 9080),
        Option("users", "The file of those who may log in (kavka console-user).", "file", completes="file"),
        Option("data", "The folder for history, alert rules and the audit log.", "folder", default="kavka-console",
               completes="directory"),
        Option("allowed-host", "A name under which browsers may know it, beside localhost.", "name", repeated=True),
        Option("trusted-proxy", "The address of a reverse proxy whose X-Forwarded-For is believed.", "address",
               repeated=True),
        Option("tls-certificate", "Serve HTTPS with this certificate (PEM).", "file", completes="file"),
        Option("tls-key", "The certificate's key (PEM).", "file", completes="file"),
        # For whoever starts it as a child: it ends when its standard input does, that is when its parent is gone.
        Option("stop-on-eof", "End with the standard input.", hidden=True),
    ),
    examples=("kavka console --bootstrap-server localhost:9092",),
)  # fmt: skip

USER_COMMAND = Command(
    "console-user",
    "Who may log in to the console: a file with a line for each user, passwords hashed.",
    (
        Option("users", "The file.", "file", required=True, completes="file"),
        Option("add", "Add a user, or give one another role and password. The password is asked for, or read from "
               "standard input.", "name"),
        Option("remove", "Remove a user. Sessions of theirs end.", "name"),
        Option("list", "List users and roles."),
        Option("role", "What the user may do: look, act, or everything.", "role", default="view",
               choices=("view", "operate", "admin")),
    ),
    actions=("add", "remove", "list"),
    examples=("kavka console-user --users console-users --add anna --role admin",),
)  # fmt: skip

MODULES = {"producer": "kavka.cli.console_producer", "consumer": "kavka.cli.console_consumer"}


def main(argv: list[str]) -> int:
    module = MODULES.get(argv[0].removesuffix(".sh")) if argv else None
    if module is not None:
        return int(import_module(module).main(argv[1:]))
    return run(COMMAND, argv, _console)


def user_main(argv: list[str]) -> int:
    return run(USER_COMMAND, argv, _user)


def _console(args: Arguments) -> int:
    try:
        from kavka.console import server
        from kavka.console.auth import UsersError
        from kavka.console.settings import (
            DEFAULT_CLUSTER,
            ConsoleSettings,
            SettingsError,
            cluster_settings,
            read_clusters,
        )
    except ModuleNotFoundError as error:
        if error.name is not None and error.name.partition(".")[0] == "kavka":
            raise
        raise ToolError(f"the console needs {error.name}: pip install 'kavka[console]'") from None
    try:
        clusters = list(read_clusters(Path(args["config"]))) if "config" in args else []
        if "bootstrap-server" in args:
            given = read_properties(args["command-config"]) if "command-config" in args else {}
            given["bootstrap.servers"] = args["bootstrap-server"]
            if "connect-url" in args:
                given["console.connect.url"] = args["connect-url"]
            clusters.insert(0, cluster_settings(DEFAULT_CLUSTER, given))
        if not clusters:
            raise UsageError('Missing required argument "[bootstrap-server]"')
        settings = ConsoleSettings(
            tuple(clusters), args["host"], args["port"], _path(args, "users"), Path(args["data"]),
            tuple(args["allowed-host"]), _path(args, "tls-certificate"), _path(args, "tls-key"),
            tuple(args["trusted-proxy"]),
        )  # fmt: skip
        level = os.environ.get("KAVKA_LOG_LEVEL", "").upper()
        logging.basicConfig(
            level=level if level in logging.getLevelNamesMapping() else "WARNING",
            format="[%(asctime)s] %(levelname)s %(message)s (%(name)s)",
            stream=sys.stderr,
        )
        return server.run(settings, _announce, args["stop-on-eof"])
    except (SettingsError, UsersError) as error:
        raise ToolError(str(error)) from None


def _announce(address: str) -> None:
    print(f"The console is at {address}", flush=True)


def _path(args: Arguments, name: str) -> Path | None:
    return Path(args[name]) if name in args else None


def _user(args: Arguments) -> int:
    from kavka.console.auth import Role, UsersError, UsersFile

    users = UsersFile(Path(args["users"]))
    try:
        if "add" in args:
            users.put(args["add"], Role.by_word(args["role"]), _password(args["add"]))
            print(f"{args['add']} may {args['role']}")
        elif "remove" in args:
            users.remove(args["remove"])
            print(f"{args['remove']} is removed")
        else:
            for user, _ in users.users().values():
                print(f"{user.name} {user.role.word}")
    except UsersError as error:
        raise ToolError(str(error)) from None
    return 0


def _password(name: str) -> str:
    if not sys.stdin.isatty():
        return sys.stdin.readline().rstrip("\r\n")
    from getpass import getpass

    password = getpass(f"Password of {name}: ")
    if getpass("Again: ") != password:
        raise ToolError("the two are not the same")
    return password
