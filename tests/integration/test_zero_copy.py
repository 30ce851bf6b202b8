"""A plaintext fetch is sent with sendfile: the records do not pass through the broker's memory."""

from __future__ import annotations

import re
import signal
from collections.abc import Callable
from pathlib import Path

import pytest
from confluent_kafka import Producer

from tests.support import wire
from tests.support.kavka_process import KavkaProcess
from tests.support.processes import ManagedProcess, wait_until
from tests.support.wire import FETCH, Wire

READS = ("read", "pread64", "readv", "preadv", "preadv2", "mmap", "splice")
CALL = re.compile(r"^(?:\d+\s+)?(\w+)\((.*)$")
# The probe of the page cache reads one byte and never waits for the disk.
PROBE = re.compile(r"iov_len=1\}.*RWF_NOWAIT")


def _traced(line: str) -> tuple[str, str] | None:
    """(name of the system call, its arguments and result)."""
    match = CALL.match(line)
    return (match[1], match[2]) if match else None


@pytest.mark.timeout(120)
def test_a_plaintext_fetch_uses_sendfile_and_does_not_read_the_log(need: Callable[..., str], tmp_path: Path) -> None:
    strace = need("strace", "strace")
    with KavkaProcess(tmp_path / "kavka") as broker:
        assert wire.create_topic(broker.address, "big") == 0
        producer = Producer({"bootstrap.servers": broker.bootstrap_servers, "linger.ms": 5})
        for _ in range(20_000):
            producer.produce("big", b"x" * 1000, partition=0)
            producer.poll(0)
        assert producer.flush(30) == 0

        trace = tmp_path / "trace"
        calls = ",".join(("sendfile", *READS))
        tracer = ManagedProcess(
            [strace, "-f", "-y", "-e", f"trace={calls}", "-o", str(trace), "-p", str(broker.pid)],
            log=tmp_path / "strace.out",
        )
        try:
            wait_until(lambda: "attached" in tracer.log_tail(), timeout=20, what="strace to be attached")
            received = _fetch_all(broker)
        finally:
            tracer.signal(signal.SIGINT)
            tracer.wait(20)
        assert received > 20_000_000

        sent = 0
        reads: list[str] = []
        for line in trace.read_text(errors="replace").splitlines():
            call = _traced(line)
            if call is None or ".log>" not in call[1]:
                continue
            name, arguments = call
            if name == "sendfile":
                result = re.search(r"= (\d+)$", arguments)
                sent += int(result[1]) if result else 0
            elif not PROBE.search(arguments):
                reads.append(line)
        assert not reads, "\n".join(reads[:10])
        assert sent > 20_000_000


def _fetch_all(broker: KavkaProcess) -> int:
    """Fetches all records, a megabyte at a time. Returns their size."""
    received = 0
    offset = 0
    with Wire(broker.address, 30.0) as connection:
        while True:
            body = wire.fetch_request("big", 0, offset, version=4, max_bytes=1 << 20)
            code, high_watermark, records = wire.fetched(connection.call(FETCH, 4, body), 4)
            assert code == 0
            received += len(records)
            offset = wire.next_offset(records, offset)
            if offset >= high_watermark:
                return received
