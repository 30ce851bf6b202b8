"""A broker, the word count and a feeder of text, all on this machine; the counts are shown as they move.

    make demo            until Ctrl-C
    python examples/demo.py --seconds 60

Everything lies in a temporary folder and is gone in the end.
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
    parser.add_argument("--seconds", type=float, help="end so long after the first counts, once they have moved")
    seconds = parser.parse_args().seconds
    with tempfile.TemporaryDirectory(prefix="kavka-demo-") as folder, Broker() as broker:
        servers = broker.bootstrap_servers
        with Admin(bootstrap_servers=servers) as admin:
            admin.create_topics([NewTopic(SOURCE, 2), NewTopic(OUTPUT, 2)])
        print(f"A broker at {servers}; the word count starts on Spark, which takes a while.", flush=True)
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
    """Feed lines and print the ten most frequent words, until the job ends, or the time is over and they have moved."""
    counts: Counter[str] = Counter()
    until = None
    moves = 0
    with (
        Producer(bootstrap_servers=servers) as producer,
        Consumer(bootstrap_servers=servers, group_id="demo", auto_offset_reset="earliest") as consumer,
    ):
        consumer.subscribe([OUTPUT])
        while job.poll() is None and (moves < 3 or until is None or time.monotonic() < until):
            producer.send(SOURCE, " ".join(random.choices(WORDS, k=10)).encode())
            new = consumer.poll(0.2)
            for record in new:
                counts[record.key.decode()] = int.from_bytes(record.value)
            if new:
                moves += 1
                told = "  ".join(f"{word} {count}" for word, count in counts.most_common(10))
                if sys.stdout.isatty():
                    print(f"\r{told}\x1b[K", end="", flush=True)
                else:
                    print(told, flush=True)
                until = until or (None if seconds is None else time.monotonic() + seconds)
    print()


if __name__ == "__main__":
    sys.exit(main())
