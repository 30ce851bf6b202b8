"""The HTTP listener of `/metrics` for Prometheus (`metrics.listener`)."""

from __future__ import annotations

from kavka.common.metrics import CONTENT_TYPE, Registry
from kavka.web.listener import Listener


class MetricsListener(Listener):
    """Serves the metrics of a registry. A scrape reads the counters in the listener's thread, which
    is safe (see `common/metrics.py`)."""

    def __init__(self, host: str, port: int, registry: Registry) -> None:
        def metrics() -> tuple[str, bytes]:
            return CONTENT_TYPE, registry.render()

        super().__init__(host, port, {"/": metrics, "/metrics": metrics})
