"""The time from the start command to the first response: with an empty folder, with many partitions
after a clean stop, and with unflushed data after kill -9."""

from __future__ import annotations

import time
from pathlib import Path

from bench import clients
from bench.measure import Options, Row, in_pairs, paired
from bench.sides import Side
from tests.support import wire
from tests.support.wire import Wire

TOPICS = 10
UNFLUSHED_RECORDS = 2_000_000


def run(sides: dict[str, Side], options: Options) -> list[Row]:
    folders = {name: side.folder.parent / f"start-{name}" for name, side in sides.items()}
    empty = in_pairs(
        sides,
        options.pairs,
        lambda side, index: _start_with_empty_folder(side, folders[side.name] / str(index)),
        title="start with an empty folder, s",
    )
    serve_times: dict[tuple[str, int], float] = {}
    filled: dict[str, Side] = {}
    partitions = max(options.partitions // TOPICS, 1)
    try:
        for name in sides:
            filled[name] = _create_filled(name, folders[name] / "filled", partitions)

        def once(side: Side, index: int) -> float:
            started = time.monotonic()
            side.start()
            try:
                _wait_for_all(side, partitions)
                serve_times[side.name, index] = time.monotonic() - started
                return side.broker.start_seconds
            finally:
                side.broker.stop()

        first_responses = in_pairs(filled, options.pairs, once, title=f"start with {partitions * TOPICS} partitions, s")

        def recover(side: Side, index: int) -> float:
            side.start()
            _wait_for_all(side, partitions, at_least=True)
            clients.produce(side, "many-0", UNFLUSHED_RECORDS)
            side.broker.kill()
            started = time.monotonic()
            side.start()
            try:
                _wait_for_all(side, partitions, at_least=True)
                return time.monotonic() - started
            finally:
                side.broker.stop()

        recovered = in_pairs(filled, options.pairs, recover, title="start after kill -9, to the last partition, s")
    finally:
        for side in filled.values():
            side.close()
    all_serve_times = paired(serve_times, options.pairs)
    count = f"{partitions * TOPICS:,} partitions after a clean stop"
    return [
        Row("start to the first response, empty folder", "s", empty, "≤ 0.25 ×", at_most=0.25),
        Row(f"start to the first response, {count}", "s", first_responses, "≤ 1.0 ×", at_most=1.0),
        Row(f"start to the last partition served, {count}", "s", all_serve_times),
        Row("the same after kill -9 with 2 GB unflushed", "s", recovered, "≤ 0.5 ×", at_most=0.5),
    ]


def _start_with_empty_folder(model: Side, folder: Path) -> float:
    side = Side(model.name, folder)
    try:
        side.start()
        return side.broker.start_seconds
    finally:
        side.close()


def _create_filled(name: str, folder: Path, partitions: int) -> Side:
    """Create a broker with TOPICS topics and a record in every partition, and stop it."""
    side = Side(name, folder)
    side.start()
    for index in range(TOPICS):
        side.new_topic(f"many-{index}", partitions)
        with Wire(side.broker.address, 30.0) as connection:
            for partition in range(partitions):
                body = wire.produce_request(f"many-{index}", partition, wire.batch([b"x" * 100]), version=7)
                code, _ = wire.produce_error(connection.call(wire.PRODUCE, 7, body), 7)
                if code != 0:
                    raise RuntimeError(f"{side.title}: cannot produce to many-{index}-{partition}: error {code}")
    side.broker.stop()
    return side


def _wait_for_all(side: Side, partitions: int, *, at_least: bool = False) -> None:
    """Wait until every partition is served with exactly one record, or with `at_least` one."""
    deadline = time.monotonic() + 300
    with Wire(side.broker.address, 30.0) as connection:
        for index in range(TOPICS):
            for partition in range(partitions):
                while True:
                    code, offset = wire.end_offset(connection, f"many-{index}", partition)
                    if code == 0 and (offset == 1 or (at_least and offset > 1)):
                        break
                    if time.monotonic() > deadline:
                        raise TimeoutError(f"{side.title}: many-{index}-{partition} is not served")
                    time.sleep(0.005)
