"""Counters, gauges and histograms, exported to Prometheus.

Every broker has its own `Registry`; there is no global registry. Create a family once
(`registry.counter(...)`), look up its child once per label set (`family.labels("orders")`) and
store the child, so that the hot path is `child.value += n`: no lock, no lookup, no call.

Only the thread that owns a child, usually the event loop, adds to it. A scrape reads children
without a lock. A scrape may miss the latest addition, but never reads a torn number.
"""

from __future__ import annotations

import logging
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Generic, TypeVar

if TYPE_CHECKING:
    from prometheus_client.core import Metric

logger = logging.getLogger(__name__)

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

SECONDS_BUCKETS = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0)


class Counter:
    """A number that only grows: `value += n`."""

    __slots__ = ("value",)

    def __init__(self) -> None:
        self.value: float = 0


class Gauge:
    """A number that rises and falls: assign or add to `value`."""

    __slots__ = ("value",)

    def __init__(self) -> None:
        self.value: float = 0


class Histogram:
    """Counts of observations by bucket. `counts[i]` counts values above `bounds[i-1]` and up to
    `bounds[i]`; the last count has no upper bound."""

    __slots__ = ("bounds", "counts", "sum")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.sum: float = 0.0

    def observe(self, value: float) -> None:
        self.counts[bisect_left(self.bounds, value)] += 1
        self.sum += value

    @property
    def count(self) -> int:
        return sum(self.counts)


C = TypeVar("C", Counter, Gauge, Histogram)


class Family(Generic[C]):
    """Owns the children of one metric name. `labels()` returns the same child for the same
    values."""

    __slots__ = ("_children", "_make", "help", "label_names", "metric_type", "name")

    def __init__(
        self, metric_type: str, name: str, help: str, label_names: tuple[str, ...], make: Callable[[], C]
    ) -> None:
        self.metric_type = metric_type
        self.name = name
        self.help = help
        self.label_names = label_names
        self._make: Callable[[], C] = make
        self._children: dict[tuple[str, ...], C] = {}

    def labels(self, *values: str) -> C:
        child = self._children.get(values)
        if child is None:
            if len(values) != len(self.label_names):
                raise ValueError(f"{self.name} has the labels {self.label_names}, but {len(values)} values were passed")
            child = self._children.setdefault(values, self._make())
        return child

    def remove(self, *values: str) -> None:
        """Remove a child, for example of a deleted topic. An unknown child is not an error."""
        self._children.pop(values, None)

    def children(self) -> list[tuple[tuple[str, ...], C]]:
        return list(self._children.items())


# Returns a number, or (label values, number) pairs for a gauge with labels.
GaugeReader = Callable[[], "float | Iterable[tuple[Sequence[str], float]]"]


class Registry:
    """Owns the metric families of one broker, by name."""

    __slots__ = ("_families", "_readers")

    def __init__(self) -> None:
        self._families: dict[str, Family[Any]] = {}
        self._readers: dict[str, GaugeReader] = {}

    def counter(self, name: str, help: str, label_names: Sequence[str] = ()) -> Family[Counter]:
        """Return a counter. The exported name always ends in `_total`, even if `name` does not."""
        return self._family("counter", name, help, label_names, Counter)

    def gauge(
        self, name: str, help: str, label_names: Sequence[str] = (), read: GaugeReader | None = None
    ) -> Family[Gauge]:
        """Return a gauge. Its values are those of its children or, with `read`, the result of
        `read`. A scrape calls `read` in the thread of the scrape."""
        family = self._family("gauge", name, help, label_names, Gauge)
        if read is not None:
            self._readers[name] = read
        return family

    def histogram(
        self, name: str, help: str, label_names: Sequence[str] = (), buckets: Sequence[float] = SECONDS_BUCKETS
    ) -> Family[Histogram]:
        bounds = tuple(float(b) for b in buckets)
        if not bounds or list(bounds) != sorted(set(bounds)):
            raise ValueError(f"{name}: the buckets must be strictly increasing")
        return self._family("histogram", name, help, label_names, lambda: Histogram(bounds))

    def _family(
        self, metric_type: str, name: str, help: str, label_names: Sequence[str], make: Callable[[], C]
    ) -> Family[C]:
        family = self._families.get(name)
        if family is None:
            family = self._families[name] = Family(metric_type, name, help, tuple(label_names), make)
        elif family.metric_type != metric_type or family.label_names != tuple(label_names):
            raise ValueError(f"{name} already exists as a {family.metric_type} with the labels {family.label_names}")
        return family

    def collect(self) -> Iterator[Metric]:
        """Yield the metrics. This is the collector interface of prometheus_client."""
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily

        for family in list(self._families.values()):
            names = family.label_names
            if family.metric_type == "counter":
                counters = CounterMetricFamily(family.name, family.help, labels=names)
                for values, child in family.children():
                    counters.add_metric(values, child.value)
                yield counters
            elif family.metric_type == "gauge":
                gauges = GaugeMetricFamily(family.name, family.help, labels=names)
                for labels, number in self._gauge_values(family):
                    gauges.add_metric(labels, number)
                yield gauges
            else:
                histograms = HistogramMetricFamily(family.name, family.help, labels=names)
                for values, child in family.children():
                    histograms.add_metric(values, _cumulative(child), child.sum)
                yield histograms

    def _gauge_values(self, family: Family[Gauge]) -> list[tuple[Sequence[str], float]]:
        read = self._readers.get(family.name)
        if read is None:
            return [(values, child.value) for values, child in family.children()]
        try:
            result = read()
            return [((), result)] if isinstance(result, (int, float)) else list(result)
        except Exception:
            logger.exception("Cannot read the gauge %s", family.name)
            return []

    def render(self) -> bytes:
        """Return the body of a `/metrics` response."""
        from prometheus_client import CollectorRegistry, generate_latest

        # With auto_describe, `register` would collect all metrics to read their names.
        collectors = CollectorRegistry(auto_describe=False)
        collectors.register(self)
        return bytes(generate_latest(collectors))


def _cumulative(histogram: Histogram) -> list[tuple[str, float]]:
    total = 0
    rows: list[tuple[str, float]] = []
    for bound, count in zip((*histogram.bounds, float("inf")), list(histogram.counts), strict=True):
        total += count
        rows.append(("+Inf" if bound == float("inf") else repr(bound), total))
    return rows
