"""Our producer beside those that Python has: confluent-kafka (C), kafka-python, aiokafka. One broker, a new process for
each run.

    python -m bench.python_producers [--rounds 5] [--callbacks] [--clients ours,confluent]

Each round runs every client once, in turn, with acks=1 and 64 MB of buffer; the figures are medians of the rounds. Ours
runs compiled, and plain as `ours-plain`. The line for a client: records per second from the first send to the last
answer, CPU of its process, its largest memory.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import resource
import statistics
import subprocess
import sys
import time
from typing import Any

CLIENTS = ("ours", "ours-plain", "confluent", "kafka-python", "aiokafka")
BUFFER = 64 * 1024 * 1024
# The slow ones send fewer records, so that a round does not take minutes.
RECORDS = {
    ("ours", 100): 1_000_000,
    ("confluent", 100): 1_000_000,
    ("ours", 1000): 400_000,
    ("confluent", 1000): 400_000,
}
FEW = 100_000


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.python_producers")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--callbacks", action="store_true", help="with a callback for every record")
    parser.add_argument("--clients", default=",".join(CLIENTS))
    arguments = parser.parse_args()
    from kavka.testing import Broker

    clients = arguments.clients.split(",")
    found: dict[tuple[int, str], list[dict[str, float]]] = {}
    for size in (100, 1000):
        for number in range(arguments.rounds):
            for client in clients:
                with Broker() as broker:
                    argv = [client, broker.bootstrap_servers, str(size), str(RECORDS.get((client, size), FEW))]
                    argv.append("callbacks" if arguments.callbacks else "")
                    done = subprocess.run(
                        [sys.executable, "-m", "bench.python_producers", "--one", *argv],
                        capture_output=True,
                        check=False,
                    )
                if done.returncode:
                    raise RuntimeError(done.stderr.decode()[-2000:])
                figures = json.loads(done.stdout.splitlines()[-1])
                found.setdefault((size, client), []).append(figures)
                print(f"round {number + 1}, {size} B, {client}: {figures['rate']:,.0f} records/s", flush=True)
    print(
        "\n| record | client | records/s | of confluent-kafka's | CPU per record | memory |\n|---|---|---|---|---|---|"
    )
    for (size, client), runs in found.items():
        rate, cpu, memory = (statistics.median(run[name] for run in runs) for name in ("rate", "cpu", "memory"))
        best = [run["rate"] for run in found.get((size, "confluent"), [])]
        # Round by round, since the machine's mood is the same for all of a round.
        ratio = statistics.median(run["rate"] / other for run, other in zip(runs, best, strict=True)) if best else 0.0
        print(f"| {size} B | {client} | {rate:,.0f} | {ratio:.2f} | {cpu:.2f} µs | {memory:.0f} MB |")
    return 0


def one(client: str, servers: str, size: str, count: str, mode: str) -> int:
    """A run, in a process of its own."""
    value, callbacks = os.urandom(int(size)), mode == "callbacks"
    if client.startswith("ours"):
        from tests.support import forms

        forms.use(forms.PLAIN if client == "ours-plain" else forms.COMPILED)
    seconds, cpu = RUNS[client](servers, value, int(count), callbacks)
    print(
        json.dumps(
            {
                "rate": int(count) / seconds,
                "cpu": cpu / int(count) * 1e6,
                "memory": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
            }
        )
    )
    return 0


def ours(servers: str, value: bytes, count: int, callbacks: bool) -> tuple[float, float]:
    from kavka import Producer

    done = 0

    def delivered(metadata: Any, error: Any) -> None:
        nonlocal done
        done += 1

    with Producer(bootstrap_servers=servers, acks="1", buffer_memory=BUFFER) as producer:
        producer.send("t", value).get(30)
        began, used = time.perf_counter(), time.process_time()
        send = producer.send
        if callbacks:
            for _ in range(count):
                send("t", value, callback=delivered)
        else:
            for _ in range(count):
                send("t", value)
        producer.flush()
        result = time.perf_counter() - began, time.process_time() - used
    assert not callbacks or done == count
    return result


def confluent(servers: str, value: bytes, count: int, callbacks: bool) -> tuple[float, float]:
    from confluent_kafka import Producer

    done = 0

    def delivered(error: Any, message: Any) -> None:
        nonlocal done
        done += 1

    producer = Producer(
        {
            "bootstrap.servers": servers,
            "acks": "1",
            "queue.buffering.max.messages": 10_000_000,
            "queue.buffering.max.kbytes": BUFFER // 1024,
        }
    )
    more = {"on_delivery": delivered} if callbacks else {}
    producer.produce("t", value)
    producer.flush()
    began, used = time.perf_counter(), time.process_time()
    for number in range(count):
        while True:
            try:
                producer.produce("t", value, **more)
                break
            except BufferError:
                producer.poll(0.01)
        if callbacks and not number & 1023:
            producer.poll(0)
    producer.flush()
    result = time.perf_counter() - began, time.process_time() - used
    assert not callbacks or done == count
    return result


def kafka_python(servers: str, value: bytes, count: int, callbacks: bool) -> tuple[float, float]:
    from kafka import KafkaProducer

    producer = KafkaProducer(bootstrap_servers=servers, acks=1, enable_idempotence=False)
    producer.send("t", value).get(30)
    began, used = time.perf_counter(), time.process_time()
    for _ in range(count):
        future = producer.send("t", value)
        if callbacks:
            future.add_callback(lambda metadata: None)
    producer.flush()
    return time.perf_counter() - began, time.process_time() - used


def aiokafka(servers: str, value: bytes, count: int, callbacks: bool) -> tuple[float, float]:
    from aiokafka import AIOKafkaProducer

    async def work() -> tuple[float, float]:
        producer = AIOKafkaProducer(bootstrap_servers=servers, acks=1)
        await producer.start()
        await producer.send_and_wait("t", value)
        began, used = time.perf_counter(), time.process_time()
        for _ in range(count):
            future = await producer.send("t", value)
            if callbacks:
                future.add_done_callback(lambda done: None)
        await producer.flush()
        result = time.perf_counter() - began, time.process_time() - used
        await producer.stop()
        return result

    return asyncio.run(work())


RUNS = {"ours": ours, "ours-plain": ours, "confluent": confluent, "kafka-python": kafka_python, "aiokafka": aiokafka}


if __name__ == "__main__":
    sys.exit(one(*sys.argv[2:]) if sys.argv[1:2] == ["--one"] else main())
