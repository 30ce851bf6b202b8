"""`kavka console`: the web console; `kavka console-user`: its users.

`kavka console producer|consumer` runs console-producer or console-consumer, so that
`bin/kafka-console producer.sh …`, which some documents contain, also works.
"""

from __future__ import annotations

import sys
from importlib import import_module
from pathlib import Path

from kavka.cli.connecting import read_properties
from kavka.cli.options import Arguments, Command, Option, UsageError
from kavka.cli.tool import ToolError, log_to_stderr, run

COMMAND = Command(
    "console",
    "Serve the web console of one or more clusters, by default at http://localhost:9080. "
    "With 'producer' or 'consumer' as the first argument, run console-producer or console-consumer.",
    (
        Option("bootstrap-server", "Brokers of the cluster: host:port, separated by commas.", "server to connect to"),
        Option("command-config", "A file with client settings for the cluster.", "file", completes="file"),
        Option("connect-url", "Connect workers of the cluster: http://host:8083 or https://host:8443, separated by "
               "commas.", "address"),
        Option("config", "A file with several clusters: [name], then client settings.", "file", completes="file"),
        Option("host", "The address to listen on. Other addresses than localhost require --users.", "address",
               default="localhost"),
        Option("port", "The port to listen on; 0 for any free port.", "port", int, 9080),
        Option("users", "The file with the users (kavka console-user).", "file", completes="file"),
        Option("data", "The folder for history, alert rules and the audit log.", "folder", default="kavka-console",
               completes="directory"),
        Option("oidc", "The file with the settings of an identity provider (OpenID Connect).", "file",
               completes="file"),
        Option("base-path", "The path of the console behind a reverse proxy, for example /kavka.", "path",
               default=""),
        Option("allowed-host", "A host name that browsers may use, besides localhost.", "name", repeated=True),
        Option("trusted-proxy", "The address or network of a reverse proxy whose X-Forwarded-For and -Proto are "
               "trusted.", "address", repeated=True),
        Option("tls-certificate", "Serve HTTPS with this certificate (PEM).", "file", completes="file"),
        Option("tls-key", "The certificate's key (PEM).", "file", completes="file"),
        # For a parent process: the end of standard input means that the parent has ended.
        Option("stop-on-eof", "Stop at the end of standard input.", hidden=True),
    ),
    examples=("kavka console --bootstrap-server localhost:9092",),
)  # fmt: skip

USER_COMMAND = Command(
    "console-user",
    "Manage the users of the console: a file with one line per user and hashed passwords.",
    (
        Option("users", "The file.", "file", required=True, completes="file"),
        Option("add", "Add a user, or change the role and password of a user. Prompts for the password, or reads it "
               "from standard input.", "name"),
        Option("remove", "Remove a user and end the user's sessions.", "name"),
        Option("list", "List users and roles."),
        Option("role", "The permissions of the user: none, read, change data, or everything.", "role",
               default="view", choices=("none", "view", "operate", "admin")),
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
            default_settings = read_properties(args["command-config"]) if "command-config" in args else {}
            default_settings["bootstrap.servers"] = args["bootstrap-server"]
            if "connect-url" in args:
                default_settings["console.connect.url"] = args["connect-url"]
            clusters.insert(0, cluster_settings(DEFAULT_CLUSTER, default_settings))
        if not clusters:
            raise UsageError('Missing required argument "[bootstrap-server]"')
        settings = ConsoleSettings(
            tuple(clusters), args["host"], args["port"], _path(args, "users"), Path(args["data"]),
            tuple(args["allowed-host"]), _path(args, "tls-certificate"), _path(args, "tls-key"),
            tuple(args["trusted-proxy"]), _path(args, "oidc"), args["base-path"].rstrip("/"),
        )  # fmt: skip
        log_to_stderr("WARNING")
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
            print(f"{args['add']} has the role {args['role']}")
        elif "remove" in args:
            users.remove(args["remove"])
            print(f"removed {args['remove']}")
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
        raise ToolError("the passwords do not match")
    return password
