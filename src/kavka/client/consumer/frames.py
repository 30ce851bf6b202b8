"""Memory for the answers of fetches, used again: fresh memory for each costs as much as receiving into it."""

from __future__ import annotations

from collections.abc import Callable
from sys import getrefcount

from kavka.client.consumer._decode import new_buffer

MOST_KEPT = 8
LARGEST_KEPT = 4 * 1024 * 1024
ROUNDING = 256 * 1024


class FrameMemory:
    """Gives out views. A view, and every slice of it, holds a reference to the memory: when the only one left is the
    list's, nobody can see it any more. The loop gives memory out; whoever polls lets go of it, on any thread."""

    def __init__(self, new: Callable[[int], bytearray] = new_buffer) -> None:
        self._new = new
        self._kept: list[bytearray] = []
        # glibc returns free memory at the end of the heap to the system when there is more than twice the largest piece
        # that was mapped and freed. Without this, records that a program reads and drops are returned, and asked for
        # again page by page, with every poll.
        del bytearray(LARGEST_KEPT)[:]

    def __call__(self, size: int) -> memoryview:
        for one in self._kept:
            # The list, the loop's name and getrefcount's argument.
            if len(one) >= size and getrefcount(one) == 3:
                return memoryview(one)[:size]
        made = self._new(-(-size // ROUNDING) * ROUNDING)
        if len(made) <= LARGEST_KEPT:
            if len(self._kept) >= MOST_KEPT:
                self._kept.pop(0)
            self._kept.append(made)
        return memoryview(made)[:size]
