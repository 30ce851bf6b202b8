"""A live word count: a broker, a streams job and a producer of text on this machine.

    make demo            until Ctrl-C
    python examples/demo.py --seconds 60

All data is in a temporary folder, which is deleted at the end.
"""

from __future__ import annotations

import argparse
import os
import random
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

from kavka import Admin, Consumer, NewTopic, Producer
from kavka.testing import Broker

TEXT = "the log is a stream and the stream is a log of what was said to be read and counted"
WORDS = TEXT.split()
SOURCE, OUTPUT = "streams-plaintext-input", "streams-plaintext-output"
JOB = Path(__file__).with_name("word_count.py")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, help="exit this long after the first counts")
    seconds = parser.parse_args().seconds
    with tempfile.TemporaryDirectory(prefix="kavka-demo-") as folder, Broker() as broker:
        servers = broker.bootstrap_servers
        with Admin(bootstrap_servers=servers) as admin:
            admin.create_topics([NewTopic(SOURCE, 2), NewTopic(OUTPUT, 2)])
        print(f"The broker is at {servers}. Starting the word count on Spark takes a while.", flush=True)
        environment = {**os.environ, "KAVKA_PIPELINE_DIR": f"{folder}/jobs"}
        kavka = [sys.executable, "-m", "kavka.cli.main", "pipeline"]
        with open(f"{folder}/job.log", "wb") as log:
            job = subprocess.Popen(
                [*kavka, "run", str(JOB), "--bootstrap-server", servers, "--config", f"state.dir={folder}/state"],
                env=environment,
                stderr=log,
                stdout=log,
            )
        try:
            show(servers, seconds, job)
            subprocess.run([*kavka, "status"], env=environment, check=False)
        except KeyboardInterrupt:
            print()
        finally:
            if job.poll() is None:
                subprocess.run([*kavka, "stop"], env=environment, check=False)
            try:
                job.wait(60)
            except subprocess.TimeoutExpired:
                job.kill()
                job.wait()
        if job.returncode:
            print(Path(folder, "job.log").read_text()[-2000:], file=sys.stderr)
        return job.returncode


def show(servers: str, seconds: float | None, job: subprocess.Popen[bytes]) -> None:
    """Send lines and print the ten most frequent words, until the job ends, or until the time has
    expired and counts have changed three times."""
    counts: Counter[str] = Counter()
    deadline = None
    changes = 0
    with (
        Producer(bootstrap_servers=servers) as producer,
        Consumer(bootstrap_servers=servers, group_id="demo", auto_offset_reset="earliest") as consumer,
    ):
        consumer.subscribe([OUTPUT])
        while job.poll() is None and (changes < 3 or deadline is None or time.monotonic() < deadline):
            producer.send(SOURCE, " ".join(random.choices(WORDS, k=10)).encode())
            records = consumer.poll(0.2)
            previous = Counter(counts)
            for record in records:
                counts[record.key.decode()] = int.from_bytes(record.value)
            changes += any(0 < count < counts[word] for word, count in previous.items())
            if records:
                line = "  ".join(f"{word} {count}" for word, count in counts.most_common(10))
                if sys.stdout.isatty():
                    print(f"\r{line}\x1b[K", end="", flush=True)
                else:
                    print(line, flush=True)
                deadline = deadline or (None if seconds is None else time.monotonic() + seconds)
    print()


if __name__ == "__main__":
    sys.exit(main())
