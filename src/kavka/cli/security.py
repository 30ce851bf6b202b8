"""`kavka security`: the files of a secured broker.

`init` writes everything that a single node with SASL_SSL and ACLs needs into one folder:

    ca.pem             the certificate of a new certificate authority
    server.pem         key and certificate of the broker
    users              the first user, for `kavka server --add-scram`; the password is random
    server.properties  settings of the broker
    admin.properties   settings of clients and tools of the first user

The key of the authority is not stored: it cannot issue further certificates.
"""

from __future__ import annotations

import re
import secrets
from pathlib import Path

from kavka.cli.options import Arguments, Command, Option, Positional
from kavka.cli.server import command_name
from kavka.cli.tool import ToolError, run

_USER = "admin"
_VALID_DAYS = 397

COMMAND = Command(
    "security",
    "Create the files of a secured broker.",
    subcommands=(
        Command(
            "init",
            "Create certificates, an admin user with a random password, and the settings of a broker and its clients.",
            (
                Option("host", "A name or address of the broker; the first is advertised.", "host", repeated=True),
                Option("port", "The port of the broker.", "port", int, 9092),
            ),
            positionals=(Positional("folder", "A new folder for the files.", required=True),),
            examples=(
                "kavka security init kavka-security",
                "kavka security init /etc/kavka --host broker1.example.com",
            ),
        ),
    ),
)


def main(argv: list[str]) -> int:
    return run(COMMAND, argv, _init)


def _init(args: Arguments) -> int:
    from kavka.security.authority import DAY, write_private
    from kavka.security.local_security import HOSTS, LocalSecurity

    folder = Path(args.positionals[0]).absolute()
    hosts = tuple(args["host"]) or ("localhost",)
    for host in hosts:
        if not re.fullmatch(r"[A-Za-z0-9.:-]+", host):
            raise ToolError(f"--host: {host!r} is no host name or address")
    try:
        folder.mkdir(parents=True, mode=0o700)
    except FileExistsError:
        raise ToolError(f"{folder} exists already: choose a new folder") from None
    except OSError as error:
        raise ToolError(f"cannot create {folder}: {error.strerror}") from None
    # Printable in a properties file, a JAAS string and the syntax of --add-scram.
    password = secrets.token_urlsafe(24)
    security = LocalSecurity(
        folder,
        "SASL_SSL",
        mechanisms=("SCRAM-SHA-512",),
        users={_USER: password},
        hosts=tuple(dict.fromkeys((*hosts, *HOSTS))),
        valid_for=_VALID_DAYS * DAY,
    )
    address = f"[{hosts[0]}]" if ":" in hosts[0] else hosts[0]
    broker = {
        "listeners": f"SASL_SSL://{address}:{args['port']}",
        "log.dirs": str(folder / "data"),
        **security.broker_settings(),
        "authorizer.class.name": "kafka.security.authorizer.AclAuthorizer",
        "super.users": f"User:{_USER}",
    }
    write_private(folder / "users", "".join(f"{user}\n" for user in security.new_users()))
    write_private(folder / "server.properties", _properties(broker))
    write_private(folder / "admin.properties", _properties(security.client_settings(_USER)))
    print(_instructions(folder, f"{address}:{args['port']}"))
    return 0


def _properties(settings: dict[str, str]) -> str:
    return "".join(f"{name}={value}\n".replace("\\", "\\\\") for name, value in settings.items())


def _instructions(folder: Path, server: str) -> str:
    kavka, admin = command_name(), folder / "admin.properties"
    return f"""Wrote the certificates, users and settings of a secured broker to {folder}
The certificates are valid for {_VALID_DAYS} days. Only this user of the machine can read the files.

Start the broker:
  {kavka} server {folder / "server.properties"} --add-scram @{folder / "users"}
Use it as {_USER}, who may do everything:
  {kavka} topics --bootstrap-server {server} --command-config {admin} --create --topic greetings
Add a user who may read the topic:
  {kavka} configs --bootstrap-server {server} --command-config {admin} --alter --entity-type users \\
    --entity-name alice --add-config 'SCRAM-SHA-512=[password=a-good-password]'
  {kavka} acls --bootstrap-server {server} --command-config {admin} --add --allow-principal User:alice \\
    --consumer --topic greetings --group '*'"""
