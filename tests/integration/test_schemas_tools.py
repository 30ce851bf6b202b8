"""The console tools and `kavka registry` with schemas of a registry."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from kavka import AvroSerializer, Producer
from kavka.cli.registry_files import VERSION
from tests.support.protos import FILES
from tests.support.registry import Registry
from tests.support.targets import Target
from tests.support.tools import run_kavka_process

pytestmark = [pytest.mark.java, pytest.mark.timeout(180)]

ORDER = {
    "type": "record",
    "name": "Order",
    "fields": [{"name": "id", "type": "int"}, {"name": "who", "type": ["null", "string"], "default": None}],
}
PERSON = {"type": "object", "properties": {"age": {"type": "integer"}}}
LINES = {
    "avro": ['{"id":1,"who":{"string":"Ö"}}', '{"id":2,"who":null}'],
    "json-schema": ['{"age":3}', "{}"],
    "protobuf": ['{"cents":"5","currency":"EUR"}', '{"cents":"-1"}'],
}
SCHEMAS = {
    "avro": json.dumps(ORDER),
    "json-schema": json.dumps(PERSON),
    "protobuf": FILES["kavka_shop_money.proto"],
}


@pytest.mark.parametrize(
    "format",
    ["avro", pytest.param("json-schema", marks=pytest.mark.matrix), pytest.param("protobuf", marks=pytest.mark.matrix)],
)
def test_lines_are_written_and_printed_with_a_schema(
    target: Target, registry: Registry, topic: str, format: str, tmp_path: Path
) -> None:
    schema = tmp_path / "schema"
    schema.write_text(SCHEMAS[format])
    common = ["--bootstrap-server", target.bootstrap_servers, "--topic", topic, "--property"]
    common.append(f"schema.registry.url={registry.url}")
    keys = ["--property", "parse.key=true", "--property", "null.marker=NULL"]
    lines = [f"k{number}\t{line}" for number, line in enumerate([*LINES[format], "NULL"])]
    text = "\n".join(lines)
    result = run_kavka_process(
        "console-producer", *common, *keys, "--line-reader", format, "--property", f"value.schema.file={schema}",
        stdin=text.encode(),
    )  # fmt: skip
    assert (result.code, result.out) == (0, ""), result.err
    # Later lines are written with the latest version of the subject.
    result = run_kavka_process(
        "console-producer", *common, "--line-reader", format, stdin=LINES[format][0].encode()
    )  # fmt: skip
    assert result.code == 0, result.err
    printed = ["--property", "print.key=true", "--property", "null.literal=NULL", "--property", "key.separator=\t"]
    result = run_kavka_process(
        "console-consumer", *common, *printed, "--formatter", format, "--from-beginning", "--max-messages", "4"
    )
    assert result.code == 0, result.err
    assert result.out.splitlines() == [*lines, f"NULL\t{LINES[format][0]}"]
    assert registry.client().versions(f"{topic}-value") == [1]


def test_errors_are_one_line_with_the_place_of_the_record(target: Target, registry: Registry, topic: str) -> None:
    server = ["--bootstrap-server", target.bootstrap_servers, "--topic", topic]
    url = ["--property", f"schema.registry.url={registry.url}"]
    schema = ["--property", f"value.schema={json.dumps(ORDER)}"]
    result = run_kavka_process(
        "console-producer", *server, *url, *schema, "--line-reader", "avro", stdin=b'{"id":1,"who":null}\n{"id":"x"}\n'
    )
    assert result.code == 1
    assert "line 2: " in result.err
    assert len(result.err.splitlines()) == 1
    with Producer(bootstrap_servers=target.bootstrap_servers) as producer:
        producer.send(topic, b"no schema").get(30)
        producer.send(topic, AvroSerializer(ORDER, registry=registry.url).serialize(topic, {"id": 3})).get(30)
    reading = ["console-consumer", *server, "--partition", "0", "--offset", "earliest", "--timeout-ms", "5000"]
    reading += ["--formatter", "avro"]
    result = run_kavka_process(*reading, *url)
    assert result.code == 1
    assert f"Cannot format the record of {topic}-0 at offset 1: the data does not start with a zero byte" in result.err
    result = run_kavka_process(*reading, *url, "--skip-message-on-error")
    assert result.out.splitlines() == ['{"id":1,"who":null}', '{"id":3,"who":null}']
    # An error of the registry skips no record.
    away = ["--property", "schema.registry.url=http://127.0.0.1:1", "--property", "max.retries=0"]
    result = run_kavka_process(*reading, *away, "--skip-message-on-error")
    assert result.code == 1
    assert "schema registry http://127.0.0.1:1 is not available: Connection refused" in result.err
    result = run_kavka_process(*reading)
    assert "schema.registry.url" in result.err


def test_registry_needs_its_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("APICURIO_HOME", str(tmp_path))
    result = run_kavka_process("registry")
    assert result.code == 1
    assert f"APICURIO_HOME ({tmp_path}) contains no" in result.err
    monkeypatch.delenv("APICURIO_HOME")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    archive = tmp_path / "io/apicurio/apicurio-registry-app" / VERSION / f"apicurio-registry-app-{VERSION}-all.tar.gz"
    archive.parent.mkdir(parents=True)
    archive.write_bytes(b"other")
    monkeypatch.setenv("KAVKA_MAVEN_REPOSITORY", tmp_path.as_uri())
    result = run_kavka_process("registry")
    assert result.code == 1
    assert "has the wrong checksum" in result.err
    assert list((tmp_path / "kavka").iterdir()) == []
