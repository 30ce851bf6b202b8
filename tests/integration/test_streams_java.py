"""The expected results of the streams tests equal the output of Kafka Streams."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.support import jars
from tests.support.missing import skip_loudly

SUPPORT = Path(jars.__file__).parent


@pytest.mark.java
@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_golden_file_equals_the_output_of_kafka_streams() -> None:
    try:
        path = jars.class_path("streams-3.9.1")
    except jars.JavaMissing as error:
        skip_loudly(str(error))
    source = SUPPORT / "java" / "StreamsProbe.java"
    output = subprocess.run(
        [jars.java(), "-cp", path, str(source), "0"], capture_output=True, text=True, timeout=550, check=True
    ).stdout
    golden = (SUPPORT.parent / "golden" / "streams-3.9.1.txt").read_text()

    def comparable_lines(text: str) -> list[str]:
        """The lines without class names of lambdas, which contain addresses."""
        return [line.split(" (extractor")[0] for line in text.splitlines()]

    assert comparable_lines(output) == comparable_lines(golden)
