"""Applies the quotas in the metadata tree to this broker."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Callable
from ipaddress import ip_address
from typing import Any

from kavka.broker.settings import Settings
from kavka.metadata import paths
from kavka.metadata.entity_configs import EntityConfigs
from kavka.network import throttling
from kavka.network.server import Server
from kavka.security.quotas import (
    CLIENT_QUOTAS,
    CONNECTION_CREATION_RATE,
    CONSUMER_BYTE_RATE,
    CONTROLLER_MUTATION_RATE,
    DEFAULT,
    IP_QUOTAS,
    PRODUCER_BYTE_RATE,
    REQUEST_PERCENTAGE,
    ClientQuotas,
    parse_bounds,
)
from kavka.security.rates import Window

logger = logging.getLogger(__name__)

# Kafka's names of the types of client quotas.
QUOTA_TYPES = {
    PRODUCER_BYTE_RATE: throttling.PRODUCE,
    CONSUMER_BYTE_RATE: throttling.FETCH,
    REQUEST_PERCENTAGE: throttling.REQUEST,
    CONTROLLER_MUTATION_RATE: throttling.MUTATION,
}


class QuotaUpdates:
    """Owns the client quotas of the broker. Quotas that change before `attach` are applied then."""

    def __init__(self, entities: EntityConfigs, settings: Settings, run_in_worker: Callable[..., Any]) -> None:
        self._entities = entities
        self._run_in_worker = run_in_worker
        self._server: Server | None = None
        self._addresses: dict[str, set[str]] = {}
        self._resolving: set[asyncio.Future[None]] = set()
        self._client_quotas = ClientQuotas(
            Window(settings["quota.window.num"], 1000 * settings["quota.window.size.seconds"]),
            Window(settings["controller.quota.window.num"], 1000 * settings["controller.quota.window.size.seconds"]),
        )

    def attach(self, server: Server) -> None:
        """Apply all quotas to the server, and follow their changes."""
        self._server = server
        for entity_path, values in self._entities.items():
            self._apply(entity_path, values)
        self._entities.on_change.append(self._apply)
        server.services.metrics.gauge(
            "kavka_client_quota_throttle_time_ms",
            "The last throttle time of a client with a quota, in milliseconds",
            ("quota_type", "user", "client_id"),
            read=self._throttle_times,
        )

    def _throttle_times(self) -> list[tuple[tuple[str, str, str], float]]:
        return [
            ((QUOTA_TYPES[key.quota_key], key.user or "", key.client_id or ""), float(meter.throttled_ms))
            for key, meter in self._client_quotas.meters()
        ]

    def _apply(self, entity_path: str, values: dict[str, str]) -> None:
        assert self._server is not None
        try:
            entity = paths.quota_entity(entity_path)
        except paths.MalformedNode as error:
            logger.warning("Ignoring quotas: %s", error)
            return
        bounds, errors = parse_bounds(CLIENT_QUOTAS if entity.ip is None else IP_QUOTAS, values)
        for invalid_value in errors:
            # Written by another program.
            logger.error("Ignoring a quota of %s: %s", entity_path, invalid_value)
        if entity.ip is not None:
            self._apply_address(entity.ip, bounds.get(CONNECTION_CREATION_RATE))
            return
        self._client_quotas.set(entity, bounds)
        if self._client_quotas.has_bounds:
            # Kept when the last bound is removed, because connections hold meters until then.
            self._server.quotas = self._client_quotas

    def _apply_address(self, host: str, rate: float | None) -> None:
        assert self._server is not None
        limits = self._server.limits
        if host == DEFAULT or _is_address(host):
            limits.set_ip_rate(host if host == DEFAULT else str(ip_address(host)), rate)
            return
        # Kafka also permits host names. Their addresses may have changed since the last change.
        for address in self._addresses.pop(host, ()):
            limits.set_ip_rate(address, None)
        task = asyncio.ensure_future(self._resolve(host, rate))
        self._resolving.add(task)
        task.add_done_callback(self._resolving.discard)

    async def _resolve(self, host: str, rate: float | None) -> None:
        assert self._server is not None
        try:
            results = await self._run_in_worker(socket.getaddrinfo, host, None)
        except (OSError, UnicodeError) as error:
            logger.error("Ignoring the quota of %s: the name does not resolve (%s)", host, error)
            return
        self._addresses[host] = {result[4][0] for result in results} if rate is not None else set()
        for address in self._addresses[host]:
            self._server.limits.set_ip_rate(address, rate)


def _is_address(host: str) -> bool:
    try:
        ip_address(host)
    except ValueError:
        return False
    return True
