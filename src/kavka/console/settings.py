"""The settings of the console."""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass, field
from pathlib import Path

from kavka.common.properties import PropertiesError, parse_properties

DEFAULT_HOST, DEFAULT_PORT = "localhost", 9080
DEFAULT_DATA = Path("kavka-console")
DEFAULT_CLUSTER = "default"
OWN_PREFIX = "console."
BASE_PATH = re.compile(r"(/[A-Za-z0-9_-][A-Za-z0-9._-]*)+")
CLUSTER_NAME = re.compile(r"[A-Za-z0-9._-]{1,64}")


class SettingsError(ValueError):
    """An invalid setting; `str()` is one line with the reason."""


@dataclass(frozen=True, slots=True)
class ClusterSettings:
    """A cluster: the settings of its clients, and the console's settings for it (`own`: the
    settings `console.…`, without the prefix)."""

    name: str
    client: dict[str, str]
    own: dict[str, str] = field(default_factory=dict)

    @property
    def servers(self) -> str:
        return self.client["bootstrap.servers"]


@dataclass(frozen=True, slots=True)
class ConsoleSettings:
    """The settings of a console process."""

    clusters: tuple[ClusterSettings, ...]
    host: str = DEFAULT_HOST
    port: int = DEFAULT_PORT
    users: Path | None = None
    data: Path = DEFAULT_DATA
    allowed_hosts: tuple[str, ...] = ()
    """Host names that browsers may use, in addition to `host` and localhost."""
    tls_certificate: Path | None = None
    tls_key: Path | None = None
    trusted_proxies: tuple[str, ...] = ()
    """Addresses and networks of reverse proxies whose X-Forwarded-For and -Proto are trusted."""
    oidc: Path | None = None
    """The file with the settings of the identity provider."""
    base_path: str = ""
    """The path of the console behind a reverse proxy: `/kavka`, or "" for the root."""

    def check(self) -> None:
        """Raise SettingsError if the settings are invalid."""
        if not self.clusters:
            raise SettingsError("no cluster: set --bootstrap-server, or --config with a file of clusters")
        names = [cluster.name for cluster in self.clusters]
        for name in names:
            if not CLUSTER_NAME.fullmatch(name):
                raise SettingsError(f"'{name}' is not a valid cluster name: only letters, digits and . _ - are allowed")
            if names.count(name) > 1:
                raise SettingsError(f"there are two clusters '{name}'")
        if not is_loopback(self.host) and self.users is None and self.oidc is None:
            raise SettingsError(
                f"to listen on {self.host} the console needs users: --users FILE (kavka console-user --add creates "
                "it); without users it listens on localhost only"
            )
        if (self.tls_certificate is None) != (self.tls_key is None):
            raise SettingsError("--tls-certificate and --tls-key must be set together")
        for address in self.trusted_proxies:
            try:
                ipaddress.ip_network(address)
            except ValueError:
                raise SettingsError(f"--trusted-proxy must be an IP address or a network, not '{address}'") from None
        if self.base_path and not BASE_PATH.fullmatch(self.base_path):
            raise SettingsError(f"--base-path must have the form /kavka, not '{self.base_path}'")


def is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


_SECTION = re.compile(r"\s*\[(?P<name>[^\]]*)\]\s*")


def read_clusters(path: Path) -> tuple[ClusterSettings, ...]:
    """Read a file of clusters. A cluster is a line `[name]` and client settings in Kafka's
    properties format. Raises SettingsError if the content is invalid, and OSError."""
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        raise SettingsError(f"{path}: the file is not UTF-8") from None
    sections: dict[str, list[str]] = {}
    current: list[str] | None = None
    for line_number, line in enumerate(text.splitlines(), 1):
        section = _SECTION.fullmatch(line)
        if section:
            name = section["name"].strip()
            if name in sections:
                raise SettingsError(f"{path}:{line_number}: there are two clusters '{name}'")
            current = sections[name] = []
        elif current is not None:
            current.append(line)
        elif line.strip() and not line.lstrip().startswith(("#", "!")):
            raise SettingsError(f"{path}:{line_number}: a cluster must start with its name in brackets: [name]")
    return tuple(_cluster(path, name, "\n".join(lines)) for name, lines in sections.items())


def _cluster(path: Path, name: str, text: str) -> ClusterSettings:
    try:
        settings = parse_properties(text)
    except PropertiesError as error:
        raise SettingsError(f"{path}, [{name}]: {error}") from None
    if not settings.get("bootstrap.servers"):
        raise SettingsError(f"{path}, [{name}]: bootstrap.servers is missing")
    return cluster_settings(name, settings)


def cluster_settings(name: str, settings: dict[str, str]) -> ClusterSettings:
    own = {key.removeprefix(OWN_PREFIX): value for key, value in settings.items() if key.startswith(OWN_PREFIX)}
    return ClusterSettings(name, {k: v for k, v in settings.items() if not k.startswith(OWN_PREFIX)}, own)
