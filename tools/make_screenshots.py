"""Take the screenshots for docs/console.md with a cluster of three brokers under load, the console
and a browser.

    python tools/make_screenshots.py [folder]

It requires Java (for ZooKeeper), chromium and playwright.
"""

from __future__ import annotations

import sys
import tempfile
import threading
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from kavka import Admin, Consumer, NewTopic, Producer  # noqa: E402
from tests.support.browser import PHONE, browser, page_of  # noqa: E402
from tests.support.cluster import KavkaCluster  # noqa: E402
from tests.support.console import ConsoleProcess, of_default  # noqa: E402
from tests.support.zookeeper import ZooKeeper  # noqa: E402

LOAD_S = 40.0
TOPICS = {"orders": 6, "payments": 3, "clicks": 12, "stock": 3}


def main(argv: list[str]) -> int:
    target = Path(argv[0]) if argv else ROOT / "docs" / "images"
    target.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="kavka-screenshots-") as name:
        folder = Path(name)
        with (
            ZooKeeper(folder / "zookeeper") as zookeeper,
            KavkaCluster(folder, zookeeper) as cluster,
            ConsoleProcess(folder / "console", cluster.bootstrap_servers) as console,
        ):
            _take_screenshots(console, cluster, target)
    return 0


def _take_screenshots(console: ConsoleProcess, cluster: KavkaCluster, target: Path) -> None:
    servers = cluster.bootstrap_servers
    with Admin(bootstrap_servers=servers) as admin:
        admin.create_topics([NewTopic(name, count, 2) for name, count in TOPICS.items()])
    console.post(of_default("/alerts/rules"), {"kind": "lag", "threshold": 1000, "subject": "audit*"})
    stop = threading.Event()
    threads = [threading.Thread(target=_produce, args=(servers, stop))]
    threads += [threading.Thread(target=_consume, args=(servers, group, stop)) for group in ("billing", "audit-trail")]
    for thread in threads:
        thread.start()
    try:
        with browser() as chromium:
            with page_of(chromium, console.origin) as (page, watch):
                page.goto("/c/default/overview")
                page.wait_for_timeout(LOAD_S * 1000)
                pages = {
                    "overview": "overview",
                    "topic": "topics/orders",
                    "move": "topics/orders/move?brokers=0&brokers=1&replication=2",
                    "messages": "messages?topic=orders",
                    "groups": "groups",
                    "alerts": "alerts",
                }
                for name, path in pages.items():
                    page.goto(f"/c/default/{path}")
                    page.wait_for_timeout(2500)
                    page.screenshot(path=target / f"console-{name}.png")
                watch.check()
            with page_of(chromium, console.origin, viewport=PHONE, color_scheme="dark") as (page, watch):
                page.goto("/c/default/overview")
                page.wait_for_timeout(3000)
                page.screenshot(path=target / "console-phone.png")
                watch.check()
    finally:
        stop.set()
        for thread in threads:
            thread.join()


def _produce(servers: str, stop: threading.Event) -> None:
    with Producer(bootstrap_servers=servers) as producer:
        number = 0
        while not stop.is_set():
            for topic in TOPICS:
                for _ in range(5 + number % 17):
                    number += 1
                    value = f'{{"id": {number}, "item": "apples", "count": {number % 9 + 1}}}'
                    producer.send(topic, value.encode(), key=f"customer-{number % 50}".encode())
            time.sleep(0.1)


def _consume(servers: str, group: str, stop: threading.Event) -> None:
    """Consume until `stop` is set. The group billing keeps up; other groups are slow."""
    is_slow = group != "billing"
    config = {"group_id": group, "auto_offset_reset": "earliest", "auto_commit_interval_ms": 1000}
    with Consumer(bootstrap_servers=servers, max_poll_records=20 if is_slow else 500, **config) as consumer:
        consumer.subscribe(["orders", "payments"])
        while not stop.is_set():
            consumer.poll(0.5)
            if is_slow:
                time.sleep(1.0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
