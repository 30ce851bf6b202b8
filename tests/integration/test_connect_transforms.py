"""Connect's transformations and JSON converter produce the same results as Apache's."""

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

# In Kavka every value has a type, so a time that was converted from JSON without a schema is
# written as milliseconds. Apache's converter rejects the Java date.
MORE_LENIENT_CASES = {("TimestampConverter$Value", False, "Timestamp")}


@pytest.mark.slow
def test_the_golden_file_has_the_results_of_apaches_transformations(tmp_path: Path) -> None:
    try:
        class_path = jars.class_path("connect-3.9.1")
    except jars.JavaMissing as error:
        skip_loudly(str(error))
    cases = tmp_path / "cases.json"
    cases.write_text(json.dumps(connect_cases.cases()))
    probe = SUPPORT / "java" / "ConnectProbe.java"
    command = [jars.java(), "-Xmx256m", "-XX:+UseSerialGC", "-cp", class_path, str(probe), str(cases)]
    output = subprocess.run(command, capture_output=True, text=True, timeout=550, check=True).stdout
    assert json.loads(output) == json.loads(GOLDEN.read_text())


def decode_case(spark: Any, flow: Any, case: dict[str, Any]) -> Any:
    """Return the record of a case as the input of a sink's transformations. `VALUES` lets Spark
    evaluate it without a job."""

    def binary(value: Any) -> str:
        return "CAST(NULL AS BINARY)" if value is None else f"X'{json.dumps(value).encode().hex()}'"

    headers = ", ".join(
        f"named_struct('key', '{name}', 'value', X'{value.encode().hex()}')" for name, value in case["headers"]
    )
    time = "CAST(NULL AS TIMESTAMP)" if case["timestamp"] is None else f"timestamp_millis({case['timestamp']})"
    header_type = "array<struct<key:string,value:binary>>"
    frame = spark.sql(
        f"SELECT * FROM VALUES ({binary(case['key'])}, {binary(case['value'])}, 'orders-eu', 3, 41L, {time}, "
        f"CAST(array({headers}) AS {header_type})) AS t(key, value, topic, partition, offset, timestamp, headers)"
    )
    return flow.decode(frame, frame)


def test_transformed_records_equal_those_of_apache(spark: Any) -> None:
    from pyspark.sql import functions as F

    from kavka.pipeline.connect.flow import Flow
    from kavka.pipeline.connect.transforms.chain import compile_steps

    # The time zone of a worker's session.
    spark.conf.set("spark.sql.session.timeZone", "UTC")
    config = {"errors.tolerance": "all"}
    workers = {}
    for schemas in (True, False):
        workers[schemas] = {f"{side}.converter": "JsonConverter" for side in ("key", "value")}
        workers[schemas] |= {f"{side}.converter.schemas.enable": str(schemas).lower() for side in ("key", "value")}
    decoded_records: dict[str, Any] = {}
    golden = json.loads(GOLDEN.read_text())
    differences = []
    for number, case in enumerate(connect_cases.cases()):
        # Each case has its own converters, because they record the types of the first micro-batch.
        flow = Flow.of("c", {}, config, workers[case["schemas"]], keep_raw=False)
        record_id = json.dumps([case["schemas"], case["key"], case["value"], case["timestamp"], case["headers"]])
        if record_id not in decoded_records:
            decoded_records[record_id] = decode_case(spark, flow, case)
        steps, errors = compile_steps(
            {"transforms": "t", "transforms.t.type": f"org.apache.kafka.connect.transforms.{case['type']}"}
            | {f"transforms.t.{name}": value for name, value in case["config"].items()}
        )
        assert not errors, errors
        records = steps[0].apply(decoded_records[record_id])
        sides = [
            converter.encode(F.col(side), records.type_of(side), records.names[side]).cast("string").alias(side)
            for side, converter in (("key", flow.key), ("value", flow.value))
        ]
        rows = records.frame.select(*sides, "topic", "headers", "_error").collect()
        if (case["type"], case["schemas"], case["config"].get("target.type")) in MORE_LENIENT_CASES:
            continue
        result, expected = result_of_row(rows[0] if rows else None), result_of_golden(golden[number])
        if not case["schemas"]:
            # In Kavka a field that is null in all records has no type, and so no column.
            result, expected = without_null_fields(result), without_null_fields(expected)
        if result != expected:
            differences.append(
                f"case {number}: {case['type']} {case['config']}\n  Kavka:  {result}\n  Apache: {expected}"
            )
    assert not differences, "\n".join(differences)


def result_of_row(row: Any) -> dict[str, Any]:
    if row is None:
        return {"dropped": True}
    if row["_error"] is not None:
        return {"error": row["_error"]["exception"], "message": row["_error"]["message"].split(", found: ")[0]}
    headers = [
        [header["key"], None if header["value"] is None else bytes(header["value"]).decode()]
        for header in row["headers"]
    ]
    sides = {side: None if row[side] is None else without_optional(json.loads(row[side])) for side in ("key", "value")}
    return {"topic": row["topic"], **sides, "headers": headers}


def without_null_fields(result: dict[str, Any]) -> dict[str, Any]:
    def without(element: Any) -> Any:
        if isinstance(element, dict):
            return {name: without(value) for name, value in element.items() if value is not None}
        return element

    return {name: without(value) for name, value in result.items()}


def without_optional(element: Any) -> Any:
    """Remove `optional` from schemas. Spark does not preserve it: all columns read from JSON are
    nullable."""
    if isinstance(element, dict):
        return {name: without_optional(value) for name, value in element.items() if name != "optional"}
    return [without_optional(value) for value in element] if isinstance(element, list) else element


def result_of_golden(expected: dict[str, Any]) -> dict[str, Any]:
    """Remove Java class names and printed records from the error message."""
    if "error" not in expected:
        return {name: without_optional(value) for name, value in expected.items()}
    message = expected["message"].split(", found: ")[0].split("; supported types")[0].split(": SinkRecord")[0]
    return {"error": expected["error"], "message": message}
