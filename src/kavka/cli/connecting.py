"""The connection options of the tools, and the Admin that they configure."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kavka.cli.options import Arguments, Option, UsageError
from kavka.cli.tool import ToolError, note

if TYPE_CHECKING:
    from kavka.client.admin import Admin

DEFAULT_TIMEOUT_MS = 60_000
WARNING_DELAY_S = 3.0
"""Seconds without a connection until a tool warns that no broker is reachable."""

BOOTSTRAP = Option("bootstrap-server", "Bootstrap brokers: host:port, separated by commas.", "server to connect to")
BROKER_LIST = Option("broker-list", "Same as --bootstrap-server.", "server to connect to", deprecated=True)
ZOOKEEPER = Option(
    "zookeeper",
    "Read the bootstrap brokers from ZooKeeper.",
    "host:port[/chroot]",
    deprecated=True,
)
COMMAND_CONFIG = Option(
    "command-config", "A file with settings of the admin client.", "command config property file", completes="file"
)
TIMEOUT = Option(
    "timeout", "Maximum time to wait for the cluster, in milliseconds.", "timeout (ms)", int, DEFAULT_TIMEOUT_MS
)
JSON = Option("json", "Print JSON.")
SERVER_OPTIONS = (BOOTSTRAP.name, BROKER_LIST.name)


def connection_options(*, config: Option = COMMAND_CONFIG, timeout: Option | None = TIMEOUT) -> tuple[Option, ...]:
    """Return the connection options of tools that use the admin API."""
    return (BOOTSTRAP, config, *((timeout,) if timeout else ()), BROKER_LIST, ZOOKEEPER)


def bootstrap_servers(args: Arguments, options: tuple[str, ...] = SERVER_OPTIONS) -> str:
    """Return the bootstrap brokers from the first of `options` that is present, else from
    `--zookeeper`. Raise UsageError if none is present."""
    servers = args.first(*options)
    if servers:
        return str(servers)
    if "zookeeper" in args:
        from kavka.cli.zookeeper_brokers import brokers_in_zookeeper

        return brokers_in_zookeeper(args.command.name, args["zookeeper"])
    raise UsageError('Missing required argument "[bootstrap-server]"')


def read_properties(path: str | Path) -> dict[str, str]:
    """Read a properties file. Raise ToolError if its content is invalid."""
    from kavka.common.properties import PropertiesError, parse_properties

    try:
        with open(path, encoding="utf-8") as file:
            return parse_properties(file.read())
    except PropertiesError as error:
        raise ToolError(f"{path}: {error}") from None
    except UnicodeDecodeError:
        raise ToolError(f"{path}: not valid UTF-8") from None


@contextmanager
def admin_for(
    args: Arguments,
    *,
    config: str = "command-config",
    servers: str | None = None,
    server_options: tuple[str, ...] = SERVER_OPTIONS,
    **defaults: Any,
) -> Iterator[Admin]:
    """Open an Admin with settings from the options. The option `config` names a file, which may
    override `defaults`. `servers` takes precedence over `server_options`. Raise ToolError if no
    broker was reachable."""
    from kavka.client.admin import Admin
    from kavka.common.errors import ErrorCode, KafkaError

    settings = {name.replace("_", "."): value for name, value in defaults.items()}
    if config in args:
        settings |= read_properties(args[config])
    if servers is None:
        servers = bootstrap_servers(args, server_options)
    settings["bootstrap.servers"] = servers
    timeout = args.values.get("timeout")
    if timeout is not None and ("timeout" in args or "default.api.timeout.ms" not in settings):
        settings["default.api.timeout.ms"] = timeout
        settings.setdefault("request.timeout.ms", min(timeout, 30_000))
    timeout_text = f"{int(settings.get('default.api.timeout.ms', DEFAULT_TIMEOUT_MS)) / 1000:g} s"
    # The error at the end has the message of this logger.
    logging.getLogger("kavka.client.connections").setLevel(logging.ERROR)
    with Admin(settings) as admin:
        timer = threading.Timer(
            WARNING_DELAY_S, _warn_if_unreachable, (admin, args.command.name, servers, timeout_text)
        )
        timer.daemon = True
        timer.start()
        try:
            yield admin
        except KafkaError as error:
            if _has_connected(admin) or error.code is ErrorCode.SASL_AUTHENTICATION_FAILED:
                raise
            reason = admin.connect_error()
            raise ToolError(
                f"no broker was reachable at {servers} within {timeout_text}" + (f": {reason}" if reason else "")
            ) from None
        finally:
            timer.cancel()


def _has_connected(admin: Admin) -> bool:
    return admin.metrics()["connection-creation-total"] > 0


def _warn_if_unreachable(admin: Admin, tool: str, servers: str, timeout_text: str) -> None:
    if not _has_connected(admin):
        note(tool, f"no broker is reachable at {servers} yet; waiting up to {timeout_text} (--timeout)")
