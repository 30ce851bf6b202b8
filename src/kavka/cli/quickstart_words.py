"""The live word count of `kavka quickstart`: sends lines and shows the counts of the job."""

from __future__ import annotations

import random
import subprocess
import time
from collections import Counter

from kavka.cli.output import at_terminal

TEXT = "the log is a stream and the stream is a log of what was said to be read and counted"
WORDS = TEXT.split()
SOURCE, OUTPUT = "streams-plaintext-input", "streams-plaintext-output"
WORDS_PER_LINE = 10
SHOWN_WORDS = 10
MINIMUM_CHANGES = 3


def show_counts(servers: str, seconds: float | None, job: subprocess.Popen[str]) -> None:
    """Send lines and print the most frequent words, until the job ends, or until the time has
    expired and counts have changed three times. Without `seconds`: until Ctrl-C."""
    from kavka import Admin, Consumer, NewTopic, Producer

    with Admin(bootstrap_servers=servers) as admin:
        missing = [topic for topic in (SOURCE, OUTPUT) if topic not in admin.list_topics()]
        admin.create_topics([NewTopic(topic, 2) for topic in missing])
    counts: Counter[str] = Counter()
    deadline = None
    changes = 0
    with (
        Producer(bootstrap_servers=servers) as producer,
        Consumer(bootstrap_servers=servers, group_id="quickstart", auto_offset_reset="earliest") as consumer,
    ):
        consumer.subscribe([OUTPUT])
        while job.poll() is None and (changes < MINIMUM_CHANGES or deadline is None or time.monotonic() < deadline):
            producer.send(SOURCE, " ".join(random.choices(WORDS, k=WORDS_PER_LINE)).encode())
            records = consumer.poll(0.2)
            previous = Counter(counts)
            for record in records:
                counts[record.key.decode()] = int.from_bytes(record.value)
            changes += any(0 < count < counts[word] for word, count in previous.items())
            if records:
                line = "  ".join(f"{word} {count}" for word, count in counts.most_common(SHOWN_WORDS))
                print(f"\r{line}\x1b[K" if at_terminal() else line, end="" if at_terminal() else "\n", flush=True)
                deadline = deadline or (None if seconds is None else time.monotonic() + seconds)
    print()
