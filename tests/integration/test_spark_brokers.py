"""Kavka's Spark source and sink with Apache Kafka, and Spark's own Kafka connector with Kavka."""

from __future__ import annotations

import json
import os
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest

from kavka import Admin, NewTopic, Producer
from kavka.testing import Broker
from tests.integration.test_spark_sink import fill, options, values
from tests.support import jars, spark40, targets
from tests.support.missing import skip_loudly
from tests.support.our_consumer import read_all
from tests.support.spark import start

pytestmark = [pytest.mark.java, pytest.mark.slow]

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.timeout(300)
def test_source_and_exactly_once_sink_work_with_apache_kafka(
    java_parts: None, spark: Any, tmp_path: Path, topic: str
) -> None:
    broker = targets.start_target(targets.APACHE, tmp_path / "apache")
    try:
        with Admin(bootstrap_servers=broker.bootstrap_servers) as admin:
            admin.create_topics([NewTopic(topic, 2), NewTopic(f"{topic}-out", 2)])
            fill(broker, topic, range(0, 100, 2))
            fill(broker, topic, range(1, 100, 2), partition=1)
            read = spark.readStream.format("kavka").options(
                **options(
                    broker, subscribe=topic, startingOffsets="earliest", maxOffsetsPerTrigger=60, groupIdCommit="g"
                )
            )
            query = start(
                read.load()
                .selectExpr("key", "value")
                .writeStream.format("kavka")
                .options(**options(broker, topic=f"{topic}-out", exactlyOnce="true"))
                .option("checkpointLocation", str(tmp_path / "cp"))
                .trigger(availableNow=True)
            )
            assert query.awaitTermination(200)
            assert values(read_all(broker, f"{topic}-out")) == list(range(100))
            offsets = admin.list_consumer_group_offsets("g")
            assert sum(entry.offset for entry in offsets.values() if entry is not None) == 100
    finally:
        broker.close()


@pytest.mark.timeout(900)
def test_sparks_own_connector_works_with_kavka(tmp_path: Path, topic: str, kavka_broker: Broker) -> None:
    try:
        interpreter, connector = spark40.python(), spark40.connector()
    except jars.JavaMissing as error:
        skip_loudly(str(error))
    with Admin(bootstrap_servers=kavka_broker.bootstrap_servers) as admin:
        admin.create_topics([NewTopic(topic, 3), NewTopic(f"{topic}-out", 2)])
    with Producer(bootstrap_servers=kavka_broker.bootstrap_servers) as producer:
        for number in range(200):
            producer.send(topic, key=f"k{number}", value=f"v{number}", headers=[("h", b"x")])
    job = ROOT / "tests" / "support" / "spark40_job.py"
    arguments = [",".join(connector), kavka_broker.bootstrap_servers, topic, f"{topic}-out", str(tmp_path)]
    result = subprocess.run(
        [str(interpreter), str(job), *arguments],
        env={
            key: value for key, value in os.environ.items() if key not in ("PYTHONPATH", "SPARK_HOME", "PYSPARK_PYTHON")
        },
        capture_output=True,
        text=True,
        check=False,
        cwd=tmp_path,
    )
    assert result.returncode == 0, result.stderr[-4000:]
    (line,) = [line for line in result.stdout.splitlines() if line.startswith("RESULT ")]
    assert sorted(json.loads(line[7:])) == sorted([f"k{n}", f"v{n}", "h"] for n in range(200))


@pytest.mark.timeout(240)
def test_the_examples_in_the_documentation_work(spark: Any, kavka_broker: Broker) -> None:
    text = (ROOT / "docs" / "pipeline.md").read_text()
    blocks = re.findall(r"^```python\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    assert len(blocks) == 5
    names: dict[str, Any] = {"__name__": "example"}
    for block in blocks:
        code = compile(block.replace("localhost:9092", kavka_broker.bootstrap_servers), "pipeline.md", "exec")
        exec(code, names)
