"""The settings of the admin client."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from kavka.client.config import COMMON, NOT_YET, ClientConfig
from kavka.client.security_config import UNSUPPORTED_PREFIXES
from kavka.common.config import INT, INT_MAX, LIST, LOW, AtLeast, Between, ConfigKey, ConfigTable

K = ConfigKey

# fmt: off
ADMIN_CONFIGS = ConfigTable("admin client", (
    *(replace(key, default=300_000) if key.name == "connections.max.idle.ms" else key for key in COMMON),
    K("bootstrap.controllers", LIST, (), "Controllers to connect to first.", importance=LOW, warning=NOT_YET),
    K("default.api.timeout.ms", INT, 60_000, "Timeout of calls that pass no timeout.",
      AtLeast(0)),
    K("retries", INT, INT_MAX, "Number of retries after a retriable error.",
      Between(0, INT_MAX), LOW),
), unsupported_prefixes=UNSUPPORTED_PREFIXES)
# fmt: on


def admin_config(config: Mapping[str, Any] | None, keywords: Mapping[str, Any]) -> ClientConfig:
    return ClientConfig(ADMIN_CONFIGS, config, keywords)
