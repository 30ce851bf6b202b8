"""The tests of Kavka's clients also pass against Apache Kafka."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support import targets

ROOT = Path(__file__).resolve().parents[2]
FILES = (
    "test_our_producer.py",
    "test_our_consumer.py",
    "test_our_consumer_groups.py",
    "test_our_consumer_aio.py",
    "test_our_admin.py",
    "test_parallel.py",
    "test_documented_examples.py",
)


@pytest.mark.java
@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", [targets.APACHE, pytest.param(targets.APACHE_39, marks=pytest.mark.matrix)])
def test_the_clients_behave_the_same_on_apache_kafka(java_parts: None, name: str) -> None:
    result = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--target", name]
        + [f"tests/integration/{file}" for file in FILES],
        cwd=ROOT,
        env={key: value for key, value in os.environ.items() if not key.startswith("PYTEST_")},
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stdout[-6000:] + result.stderr[-2000:]
