"""The console's own metrics, for Prometheus. They contain names of clusters, but neither topics nor
groups nor users."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping

from kavka.common.metrics import Registry
from kavka.console.cluster import ClusterHandle

REQUEST_BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.2, 0.3, 0.5, 1.0, 2.5, 10.0)


class Metrics:
    """Owns the metrics of a console. The gauges read the state of the console at every scrape."""

    def __init__(
        self, clusters: Mapping[str, ClusterHandle], sessions: Callable[[], int], searches: Callable[[], int]
    ) -> None:
        self.registry = Registry()
        self.requests = self.registry.histogram(
            "kavka_console_request_seconds", "Duration of requests by route, until the first byte of streams",
            ("method", "route"), REQUEST_BUCKETS,
        )  # fmt: skip
        self.logins = self.registry.counter("kavka_console_logins_total", "Attempts to log in", ("outcome",))
        self.webhooks = self.registry.counter("kavka_console_webhooks_total", "Messages to webhooks", ("outcome",))
        self.registry.gauge("kavka_console_sessions", "Sessions", read=lambda: float(sessions()))
        self.registry.gauge("kavka_console_searches", "Running message searches", read=lambda: float(searches()))

        def of_clusters(
            value: Callable[[ClusterHandle], float | None],
        ) -> Callable[[], Iterable[tuple[list[str], float]]]:
            def read() -> Iterable[tuple[list[str], float]]:
                values = ((name, value(cluster)) for name, cluster in clusters.items())
                return [([name], number) for name, number in values if number is not None]

            return read

        for name, help, value in (
            ("up", "Whether the cluster responds", lambda c: float(c.sample is not None and not c.error)),
            ("sample_age_seconds", "Age of the last sample", lambda c: c.sample and time.time() - c.sample.at),
            ("sample_seconds", "Duration of the last sample", lambda c: c.sample and c.sample.duration),
            ("groups_sample_seconds", "Duration of the last sample of the groups", lambda c: c.groups_duration),
            ("alerts", "Raised alerts", lambda c: float(len(c.alerts))),
            ("brokers", "Brokers", lambda c: c.sample and float(len(c.sample.nodes))),
            ("offline_partitions", "Partitions without a leader", lambda c: c.sample and float(len(c.sample.offline))),
            ("under_replicated_partitions", "Under-replicated partitions",
             lambda c: c.sample and float(len(c.sample.under_replicated))),
        ):  # fmt: skip
            self.registry.gauge(f"kavka_console_cluster_{name}", help, ("cluster",), read=of_clusters(value))
