"""The two brokers that are compared, with default settings and Kafka's default heap.

The peer is Apache Kafka, or with `--peer REVISION` an earlier Kavka from git. Some benchmarks have
a third side, the limit of the machine (`ceiling/`).
"""

from __future__ import annotations

import shutil
import subprocess
import time
from pathlib import Path

from kavka.security.jaas import SCRAM_MODULE
from kavka.security.local_security import LocalSecurity
from tests.support import wire
from tests.support.apache import KAFKA_DEFAULTS, ApacheKafka
from tests.support.kavka_process import KavkaProcess

KAVKA = "kavka"
APACHE = "apache"
CEILING = "ceiling"

# Settings of both brokers that are not defaults. Files of deleted topics are deleted soon. A new
# group does not wait for more members.
SETTINGS = {"log.segment.delete.delay.ms": 500, "group.initial.rebalance.delay.ms": 0}


ROOT = Path(__file__).resolve().parents[1]


class EarlierKavka(KavkaProcess):
    """A broker of another revision of this repository, with the same Python."""

    def __init__(self, folder: Path, revision: str) -> None:
        super().__init__(folder, overrides=SETTINGS, start=False)
        self.version = revision
        self._source = folder / "source"
        self._source.mkdir(exist_ok=True)
        archive = subprocess.run(["git", "-C", ROOT, "archive", revision, "src"], capture_output=True, check=True)
        subprocess.run(["tar", "-x", "-C", self._source], input=archive.stdout, check=True)
        self.environment = {"PYTHONPATH": str(self._source / "src")}


class Side:
    """A broker and the topics that a benchmark creates."""

    peer: str | None = None
    """The revision to compare with instead of Apache Kafka, for all sides of a run."""

    def __init__(self, name: str, folder: Path) -> None:
        self.name = name
        self.folder = folder
        # The settings of clients beside `bootstrap.servers`.
        self.client_settings: dict[str, str] = {}
        self.broker: KavkaProcess | ApacheKafka
        if name == KAVKA:
            self.broker = KavkaProcess(folder, overrides=SETTINGS, start=False)
        elif self.peer is not None:
            self.broker = EarlierKavka(folder, self.peer)
        else:
            self.broker = ApacheKafka(folder, overrides=SETTINGS, jvm=KAFKA_DEFAULTS, start=False)
            self.broker.format()

    @property
    def title(self) -> str:
        if self.name == KAVKA:
            return "Kavka"
        return f"{'Apache Kafka' if self.peer is None else 'Kavka at'} {self.broker.version}"

    @property
    def bootstrap(self) -> str:
        return self.broker.bootstrap_servers

    @property
    def address(self) -> tuple[str, int]:
        return self.broker.address

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
                raise RuntimeError(f"{self.title}: cannot create topic {topic}: error {code}")
            time.sleep(0.2)

    def drop_topic(self, topic: str) -> None:
        """Delete a topic and wait until its files are deleted, so that the disk is idle in the next
        run."""
        wire.delete_topic(self.broker.address, topic)
        deadline = time.monotonic() + 60
        while any(self.log_dir.glob(f"{topic}-[0-9]*")) and time.monotonic() < deadline:
            time.sleep(0.1)

    def close(self) -> None:
        self.broker.close()
        shutil.rmtree(self.folder, ignore_errors=True)


class SecuredSide(Side):
    """A broker with a second listener, which the clients of the benchmark use. The benchmark itself
    manages topics and users through the PLAINTEXT listener."""

    def __init__(self, name: str, folder: Path, security: LocalSecurity) -> None:
        super().__init__(name, folder)
        self.secured_port = add_secured_listener(self.broker, security)
        self.client_settings = security.client_settings()
        if security.protocol.has_tls:
            self.client_settings["ssl.enabled.protocols"] = "TLSv1.3"

    @property
    def bootstrap(self) -> str:
        return f"127.0.0.1:{self.secured_port}"


def add_secured_listener(broker: KavkaProcess | ApacheKafka, security: LocalSecurity) -> int:
    """Add a listener with this security to a broker that is not started yet. Returns its port."""
    protocol = security.protocol.value
    settings = security.broker_settings()
    if isinstance(broker, ApacheKafka):
        settings |= {
            f"listener.name.{protocol.lower()}.{mechanism.lower()}.sasl.jaas.config": f"{SCRAM_MODULE} required;"
            for mechanism in security.mechanisms
            if security.protocol.has_sasl
        }
    with broker.config.open("a") as file:
        file.writelines(f"{name}={value}\n" for name, value in settings.items())
    return broker.add_listeners({protocol: protocol})[protocol]
