from __future__ import annotations

import pytest

from kavka.common.metrics import Registry


def lines(registry: Registry) -> list[str]:
    return [line for line in registry.render().decode().splitlines() if not line.startswith("#")]


def test_counter_is_exported_as_total():
    registry = Registry()
    child = registry.counter("kavka_bytes_in", "Bytes received", ["topic"]).labels("orders")
    child.value += 5
    child.value += 7
    assert lines(registry) == ['kavka_bytes_in_total{topic="orders"} 12.0']


def test_same_labels_return_same_child():
    registry = Registry()
    first = registry.counter("kavka_requests", "Requests", ["api"])
    second = registry.counter("kavka_requests", "Requests", ["api"])
    assert first is second
    assert first.labels("fetch") is second.labels("fetch")
    assert first.labels("fetch") is not first.labels("produce")


def test_name_cannot_be_reused_with_another_kind_or_other_labels():
    registry = Registry()
    registry.counter("kavka_x", "X", ["a"])
    with pytest.raises(ValueError, match="already exists"):
        registry.gauge("kavka_x", "X", ["a"])
    with pytest.raises(ValueError, match="already exists"):
        registry.counter("kavka_x", "X", ["b"])


def test_wrong_number_of_labels_raises_error():
    with pytest.raises(ValueError, match="labels"):
        Registry().counter("kavka_x", "X", ["a", "b"]).labels("1")


def test_removed_child_is_not_exported():
    registry = Registry()
    family = registry.counter("kavka_x", "X", ["topic"])
    family.labels("deleted").value += 1
    family.remove("deleted")
    family.remove("unknown")
    assert lines(registry) == []


def test_histogram_bucket_includes_its_upper_bound():
    registry = Registry()
    child = registry.histogram("kavka_seconds", "Time", buckets=(0.1, 1.0)).labels()
    for value in (0.05, 0.1, 0.5, 3.0):
        child.observe(value)
    assert child.counts == [2, 1, 1]
    assert child.count == 4
    assert lines(registry) == [
        'kavka_seconds_bucket{le="0.1"} 2.0',
        'kavka_seconds_bucket{le="1.0"} 3.0',
        'kavka_seconds_bucket{le="+Inf"} 4.0',
        "kavka_seconds_count 4.0",
        "kavka_seconds_sum 3.65",
    ]


def test_buckets_must_be_strictly_increasing():
    with pytest.raises(ValueError, match="strictly increasing"):
        Registry().histogram("kavka_seconds", "Time", buckets=(1.0, 0.1))


def test_gauge_callable_is_read_at_scrape():
    registry = Registry()
    partitions = [1]
    registry.gauge("kavka_partitions", "Partitions", read=lambda: len(partitions))
    registry.gauge("kavka_log_size", "Bytes", ["topic"], read=lambda: [(("a",), 1.0), (("b",), 2.0)])
    partitions.append(2)
    assert lines(registry) == [
        "kavka_partitions 2.0",
        'kavka_log_size{topic="a"} 1.0',
        'kavka_log_size{topic="b"} 2.0',
    ]


def test_failing_gauge_does_not_hide_others():
    registry = Registry()
    registry.gauge("kavka_broken", "Broken", read=lambda: 1 // 0)
    registry.gauge("kavka_fine", "Fine").labels().value = 3
    assert lines(registry) == ["kavka_fine 3.0"]


def test_registries_are_independent():
    first, second = Registry(), Registry()
    first.counter("kavka_x", "X").labels().value += 1
    assert lines(second) == []
