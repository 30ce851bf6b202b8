"""The brokers that a test can run against: Kavka, and Apache Kafka as a reference."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from tests.support.apache import LAST_WITH_ZOOKEEPER, NEWEST, ApacheKafka
from tests.support.kavka_process import KavkaProcess

Target = KavkaProcess | ApacheKafka

KAVKA = "kavka"
APACHE = "apache"
APACHE_39 = "apache39"
NAMES = (KAVKA, APACHE, APACHE_39)


def start_target(
    name: str, folder: Path, overrides: Mapping[str, object] | None = None, log_dirs: tuple[Path, ...] = ()
) -> Target:
    if name == KAVKA:
        return KavkaProcess(folder, overrides=overrides, log_dirs=log_dirs)
    version = {APACHE: NEWEST, APACHE_39: LAST_WITH_ZOOKEEPER}[name]
    return ApacheKafka(folder, version=version, overrides=overrides, log_dirs=log_dirs)
