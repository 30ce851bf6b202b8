"""Connect's transformations and JSON converter on Spark give what Apache's give."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.support import connect_cases, jars
from tests.support.missing import skip_loudly

pytestmark = [pytest.mark.java, pytest.mark.timeout(600)]

SUPPORT = Path(jars.__file__).parent
GOLDEN = SUPPORT.parent / "golden" / "connect-transforms-3.9.1.json"

# Ours has no values without types: JSON without schemas that is made a time is written as
# milliseconds, where Apache's converter refuses a Java date.
BETTER_HERE = {("TimestampConverter$Value", False, "Timestamp")}


@pytest.mark.slow
def test_the_golden_file_is_what_apaches_transformations_do(tmp_path: Path) -> None:
    try:
        path = jars.class_path("connect-3.9.1")
    except jars.JavaMissing as error:
        skip_loudly(str(error))
    cases = tmp_path / "cases.json"
    cases.write_text(json.dumps(connect_cases.cases()))
    probe = SUPPORT / "java" / "ConnectProbe.java"
    command = [jars.java(), "-Xmx256m", "-XX:+UseSerialGC", "-cp", path, str(probe), str(cases)]
    printed = subprocess.run(command, capture_output=True, text=True, timeout=550, check=True).stdout
    assert json.loads(printed) == json.loads(GOLDEN.read_text())


def decoded(spark: Any, flow: Any, case: dict[str, Any]) -> Any:
    """A record of the case as a sink's transformations get it. From VALUES: Spark needs no job for
    what follows."""

    def data(part: Any) -> str:
        return "CAST(NULL AS BINARY)" if part is None else f"X'{json.dumps(part).encode().hex()}'"

    headers = ", ".join(
        f"named_struct('key', '{name}', 'value', X'{value.encode().hex()}')" for name, value in case["headers"]
    )
    time = "CAST(NULL AS TIMESTAMP)" if case["timestamp"] is None else f"timestamp_millis({case['timestamp']})"
    kind = "array<struct<key:string,value:binary>>"
    frame = spark.sql(
        f"SELECT * FROM VALUES ({data(case['key'])}, {data(case['value'])}, 'orders-eu', 3, 41L, {time}, "
        f"CAST(array({headers}) AS {kind})) AS t(key, value, topic, partition, offset, timestamp, headers)"
    )
    return flow.decoded(frame, frame)


def test_records_come_out_as_they_do_of_apaches_transformations(spark: Any) -> None:
    from pyspark.sql import functions as F

    from kavka.pipeline.connect.flow import Flow
    from kavka.pipeline.connect.transforms.chain import compiled

    # As a worker's session has it.
    spark.conf.set("spark.sql.session.timeZone", "UTC")
    config = {"errors.tolerance": "all"}
    flows = {}
    for schemas in (True, False):
        worker = {f"{side}.converter": "JsonConverter" for side in ("key", "value")}
        worker |= {f"{side}.converter.schemas.enable": str(schemas).lower() for side in ("key", "value")}
        flows[schemas] = Flow.of("c", {}, config, worker, keep_raw=False)
    outcomes: dict[str, Any] = {}
    golden = json.loads(GOLDEN.read_text())
    wrong = []
    for number, case in enumerate(connect_cases.cases()):
        flow = flows[case["schemas"]]
        text = json.dumps([case["schemas"], case["key"], case["value"], case["timestamp"], case["headers"]])
        if text not in outcomes:
            outcomes[text] = decoded(spark, flow, case)
        steps, errors = compiled(
            {"transforms": "t", "transforms.t.type": f"org.apache.kafka.connect.transforms.{case['type']}"}
            | {f"transforms.t.{name}": value for name, value in case["config"].items()}
        )
        assert not errors, errors
        records = steps[0].apply(outcomes[text])
        sides = [
            part.encode(F.col(side), records.type_of(side), records.names[side]).cast("string").alias(side)
            for side, part in (("key", flow.key), ("value", flow.value))
        ]
        rows = records.frame.select(*sides, "topic", "headers", "_error").collect()
        if (case["type"], case["schemas"], case["config"].get("target.type")) in BETTER_HERE:
            continue
        ours, theirs = shown(rows[0] if rows else None), plain_outcome(golden[number])
        if ours != theirs:
            wrong.append(f"case {number}: {case['type']} {case['config']}\n  ours:   {ours}\n  theirs: {theirs}")
    assert not wrong, "\n".join(wrong)


def shown(row: Any) -> dict[str, Any]:
    if row is None:
        return {"dropped": True}
    if row["_error"] is not None:
        return {"error": row["_error"]["exception"], "message": row["_error"]["message"].split(", found: ")[0]}
    headers = [
        [header["key"], None if header["value"] is None else bytes(header["value"]).decode()]
        for header in row["headers"]
    ]
    sides = {side: None if row[side] is None else plain(json.loads(row[side])) for side in ("key", "value")}
    return {"topic": row["topic"], **sides, "headers": headers}


def plain(part: Any) -> Any:
    """Columns that were read from JSON may all be null: whether a field is optional is not kept."""
    if isinstance(part, dict):
        return {name: plain(value) for name, value in part.items() if name != "optional"}
    return [plain(value) for value in part] if isinstance(part, list) else part


def plain_outcome(expected: dict[str, Any]) -> dict[str, Any]:
    """Messages without the names of Java's classes and what Java prints of a record."""
    if "error" not in expected:
        return {name: plain(part) for name, part in expected.items()}
    message = expected["message"].split(", found: ")[0].split("; supported types")[0].split(": SinkRecord")[0]
    return {"error": expected["error"], "message": message}
