"""`/metrics` for Prometheus, on a listener of its own (`metrics.listener`)."""

from __future__ import annotations

from kavka.common.metrics import CONTENT_TYPE, Registry
from kavka.web.listener import Listener


class MetricsListener(Listener):
    """A scrape reads the counters from the listener's thread; see common/metrics.py for why that is safe."""

    def __init__(self, host: str, port: int, registry: Registry) -> None:
        def metrics() -> tuple[str, bytes]:
            return CONTENT_TYPE, registry.render()

        super().__init__(host, port, {"/": metrics, "/metrics": metrics})
