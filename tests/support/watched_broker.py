"""A broker that measures the turns of its event loop and its memory while a test sends requests.

with WatchedBroker(folder) as broker:
    with broker.measured() as cost:
        ...                              # requests, and a wait for their responses
    assert cost.turn_s <= 0.05           # the CPU time of the longest turn of the loop
    assert cost.memory_bytes <= 200 << 20
"""

from __future__ import annotations

import mmap
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.support.kavka_process import KavkaProcess
from tests.support.processes import wait_until
from tests.support.watched_server import COST, GAUGE

ROOT = Path(__file__).resolve().parents[2]
MAX_TURN_S = 0.05
MAX_GROWTH_BYTES = 200 << 20


@dataclass
class Cost:
    """The CPU time of the longest turn of the loop, the CPU time of the process, and the growth of
    its memory at the peak."""

    turn_s: float = 0.0
    process_s: float = 0.0
    memory_bytes: int = 0

    def within_bounds(self) -> bool:
        return self.turn_s <= MAX_TURN_S and self.memory_bytes <= MAX_GROWTH_BYTES


class WatchedBroker(KavkaProcess):
    def __init__(self, folder: Path, *, overrides: Mapping[str, object] | None = None, start: bool = True) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._gauge_file = folder / "turn.gauge"
        self._gauge_file.write_bytes(GAUGE.pack(0.0, 0.0))
        with self._gauge_file.open("r+b") as file:
            self._gauge = mmap.mmap(file.fileno(), GAUGE.size)
        super().__init__(folder, overrides=overrides, start=start)

    def command(self) -> list[str]:
        # `-m` would search the module in the working directory, which is not the repository.
        start = f"import sys; sys.path.insert(0, {str(ROOT)!r}); from tests.support.watched_server import main; main()"
        return [sys.executable, "-c", start, str(self._gauge_file), str(self.config)]

    @contextmanager
    def measured(self) -> Iterator[Cost]:
        cost = Cost()
        self._wait_for_turns()
        COST.pack_into(self._gauge, 0, 0.0)
        # Reset the peak (VmHWM) to the current size.
        Path(f"/proc/{self.pid}/clear_refs").write_text("5")
        memory, cpu = self.process.rss_bytes(), self.process.cpu_seconds()
        yield cost
        self._wait_for_turns()
        cost.turn_s = GAUGE.unpack_from(self._gauge)[0]
        cost.process_s = self.process.cpu_seconds() - cpu
        cost.memory_bytes = self.process.peak_rss_bytes() - memory

    def _wait_for_turns(self) -> None:
        """Wait until the current turn ends. A response is sent before the end of its turn."""
        calls = GAUGE.unpack_from(self._gauge)[1]
        wait_until(lambda: bool(GAUGE.unpack_from(self._gauge)[1] >= calls + 2), timeout=120, what="turns of the loop")

    def close(self) -> None:
        super().close()
        self._gauge.close()
