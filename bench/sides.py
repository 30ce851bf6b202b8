"""The two brokers that are compared, each as a user gets it: default settings, Kafka's default heap for Kafka."""

from __future__ import annotations

import shutil
import time
from pathlib import Path

from tests.support import wire
from tests.support.apache import KAFKA_DEFAULTS, ApacheKafka
from tests.support.kavka_process import KavkaProcess

KAVKA = "kavka"
APACHE = "apache"

# What is not a default, and the same for both: deleted topics leave the disk at once, and a group does not wait for
# more members than have joined.
SETTINGS = {"log.segment.delete.delay.ms": 500, "group.initial.rebalance.delay.ms": 0}


class Side:
    """One broker and the topics that the benchmark makes on it."""

    def __init__(self, name: str, folder: Path) -> None:
        self.name = name
        self.folder = folder
        self.broker: KavkaProcess | ApacheKafka
        if name == KAVKA:
            self.broker = KavkaProcess(folder, overrides=SETTINGS, start=False)
        else:
            self.broker = ApacheKafka(folder, overrides=SETTINGS, jvm=KAFKA_DEFAULTS, start=False)
            self.broker.format()

    @property
    def title(self) -> str:
        return "Kavka" if self.name == KAVKA else f"Apache Kafka {self.broker.version}"

    @property
    def bootstrap(self) -> str:
        return self.broker.bootstrap_servers

    @property
    def log_dir(self) -> Path:
        return self.broker.log_dirs[0]

    def start(self) -> None:
        self.broker.start(timeout=300)

    def cpu_seconds(self) -> float:
        return self.broker.process.cpu_seconds()

    def rss_mib(self) -> float:
        return self.broker.process.rss_bytes() / (1 << 20)

    def new_topic(self, topic: str, partitions: int = 1) -> None:
        deadline = time.monotonic() + 60
        while (code := wire.create_topic(self.broker.address, topic, partitions)) != 0:
            if time.monotonic() > deadline:
                raise RuntimeError(f"{self.title}: topic {topic} cannot be created, error {code}")
            time.sleep(0.2)

    def drop_topic(self, topic: str) -> None:
        """Deletes a topic and waits until its files are gone, so that the next run has a quiet disk."""
        wire.delete_topic(self.broker.address, topic)
        deadline = time.monotonic() + 60
        while any(self.log_dir.glob(f"{topic}-[0-9]*")) and time.monotonic() < deadline:
            time.sleep(0.1)

    def close(self) -> None:
        self.broker.close()
        shutil.rmtree(self.folder, ignore_errors=True)
