"""Connect: the API for custom connectors.

    from kavka.connect import Context, Option, Source

`docs/connect.md` describes workers and the built-in connectors.
"""

from __future__ import annotations

from kavka.common.config import ConfigType, Importance
from kavka.pipeline.connect.api import (
    Connector,
    Context,
    Failed,
    IncrementalSource,
    Offsets,
    Sink,
    Source,
    query_id,
)
from kavka.pipeline.connect.errors import ConfigErrors, ConnectError, RetriableError
from kavka.pipeline.connect.options import REQUIRED, Option
from kavka.pipeline.connect.providers import ConfigProvider, ProviderError

__all__ = [
    "REQUIRED",
    "ConfigErrors",
    "ConfigProvider",
    "ConfigType",
    "ConnectError",
    "Connector",
    "Context",
    "Failed",
    "Importance",
    "IncrementalSource",
    "Offsets",
    "Option",
    "ProviderError",
    "RetriableError",
    "Sink",
    "Source",
    "query_id",
]
