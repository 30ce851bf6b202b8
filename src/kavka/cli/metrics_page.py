"""One `/metrics` for all brokers of a unit: the metrics of each broker with a label `broker`."""

from __future__ import annotations

import http.client
import re
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

from kavka.cli.supervisor import Process, State
from kavka.common.config import ConfigError
from kavka.common.metrics import CONTENT_TYPE, Registry
from kavka.web.listener import Listener

SCRAPE_TIMEOUT_S = 5.0
"""Prometheus waits 10 s by default."""
_SAMPLE = re.compile(r"([a-zA-Z_:][a-zA-Z0-9_:]*)(?:\{(.*)\})? (\S+)")

Sources = Mapping[str, tuple[Process, tuple[str, int]]]
"""The process and the address of the metrics of each broker, by broker id."""


class MetricsPage(Listener):
    """Serves the metrics of the brokers that are ready and respond in time, and the state of all
    brokers. The constructor raises OSError if the address cannot be bound."""

    def __init__(self, host: str, port: int, sources: Sources) -> None:
        self._sources = sources
        self._registry = Registry()

        def ready() -> list[tuple[tuple[str], float]]:
            return [((id,), float(process.state is State.READY)) for id, (process, _) in sources.items()]

        self._registry.gauge("kavka_broker_ready", "1 if the broker runs and is ready", ("broker",), ready)
        self._restarts = self._registry.counter("kavka_broker_restarts", "Restarts after a crash", ("broker",))
        super().__init__(host, port, {"/": self._page, "/metrics": self._page})

    def _page(self) -> tuple[str, bytes]:
        for id, (process, _) in self._sources.items():
            self._restarts.labels(id).value = process.restarts
        addresses = {id: address for id, (process, address) in self._sources.items() if process.state is State.READY}
        with ThreadPoolExecutor(max_workers=max(1, len(addresses))) as pool:
            pages = dict(zip(addresses, pool.map(_scrape, addresses.values()), strict=True))
        return CONTENT_TYPE, self._registry.render() + merge(pages).encode()


@contextmanager
def serving_metrics(address: tuple[str, int] | None, sources: Sources) -> Iterator[None]:
    """Serve the metrics of the brokers inside the block, unless `address` is None. Raises
    ConfigError."""
    if address is None:
        yield
        return
    try:
        page = MetricsPage(*address, sources)
    except OSError as error:
        host, port = address
        raise ConfigError("metrics.listener", f"{host}:{port} cannot be bound: {error.strerror}") from None
    try:
        yield
    finally:
        page.close()


def _scrape(address: tuple[str, int]) -> str:
    """Return the metrics of a broker; empty if it does not respond."""
    connection = http.client.HTTPConnection(*address, timeout=SCRAPE_TIMEOUT_S)
    try:
        connection.request("GET", "/metrics")
        response = connection.getresponse()
        return response.read().decode() if response.status == 200 else ""
    except (OSError, http.client.HTTPException):
        return ""
    finally:
        connection.close()


def merge(pages: Mapping[str, str]) -> str:
    """Merge pages in Prometheus' text format, by broker id. Each sample gets the label `broker`;
    the samples of a family follow each other, as the format requires."""
    families: dict[str, list[str]] = {}
    for broker, page in pages.items():
        family = ""
        for line in page.splitlines():
            if line.startswith("# "):
                name = line.split(" ", 3)[2]
                # The HELP and TYPE lines of a family are those of the first page.
                if name != family:
                    family, is_new = name, name not in families
                    families.setdefault(name, [])
                if is_new:
                    families[name].append(line)
            elif match := _SAMPLE.fullmatch(line):
                name, labels, value = match.groups()
                more = f",{labels}" if labels else ""
                families.setdefault(family or name, []).append(f'{name}{{broker="{broker}"{more}}} {value}')
    return "".join(f"{line}\n" for lines in families.values() for line in lines)
