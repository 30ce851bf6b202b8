"""Run GoldenRecords.java on the Java client; `python -m tests.golden.records.generate` writes the
golden files again."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

from tests.support import jars

FOLDER = Path(__file__).parent
VERSIONS = {"3.9.1": "0", "4.3.0": "2"}
"""Client versions, with the lowest magic that each is asked to write."""


def run(version: str, *args: str, stdin: str = "") -> str:
    source = (FOLDER / "GoldenRecords.java").read_text()
    if not version.startswith("3."):
        # 4.x has the same classes in another package, and no conversion to older formats.
        source = source.replace("kafka.common.record.", "kafka.common.record.internal.")
        source = source.replace("record.internal.TimestampType", "record.TimestampType")
        source = "\n".join(line for line in source.splitlines() if "downConvert" not in line and "int to" not in line)
        source = source.replace("if (minMagic == 0 && codec != CompressionType.ZSTD)", "")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "GoldenRecords.java"
        path.write_text(source)
        command = [jars.java(), "-Xmx256m", "-XX:TieredStopAtLevel=1", "-cp", jars.class_path(f"clients-{version}")]
        result = subprocess.run(
            [*command, str(path), *args], input=stdin, capture_output=True, text=True, timeout=120, check=False
        )
    if result.returncode != 0:
        raise RuntimeError(f"GoldenRecords with kafka-clients {version} failed: {result.stderr[-2000:]}")
    return result.stdout


def main() -> int:
    for version, lowest in VERSIONS.items():
        (FOLDER / f"java-{version}.txt").write_text(run(version, "write", lowest))
    return 0


if __name__ == "__main__":
    sys.exit(main())
