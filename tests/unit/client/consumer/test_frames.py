"""Memory of fetched answers that is used again: never while somebody can see it."""

from __future__ import annotations

from kavka.client.consumer.frames import LARGEST_KEPT, MOST_KEPT, FrameMemory


class Made:
    def __init__(self) -> None:
        self.sizes: list[int] = []

    def __call__(self, size: int) -> bytearray:
        self.sizes.append(size)
        return bytearray(size)


def test_memory_that_nobody_sees_any_more_is_given_out_again() -> None:
    made = Made()
    memory = FrameMemory(made)
    first = memory(1_000_000)
    assert len(first) == 1_000_000
    del first
    second = memory(900_000)
    assert len(second) == 900_000
    assert len(made.sizes) == 1


def test_a_slice_of_a_slice_keeps_the_memory() -> None:
    made = Made()
    memory = FrameMemory(made)
    frame = memory(1000)
    frame[500:503] = b"abc"
    value = frame[100:900][400:403]
    del frame
    other = memory(1000)
    other[:] = bytes(1000)
    assert bytes(value) == b"abc"
    assert len(made.sizes) == 2
    del value, other
    memory(1000)
    assert len(made.sizes) == 2


def test_what_is_larger_than_what_is_kept_is_made_anew_each_time() -> None:
    made = Made()
    memory = FrameMemory(made)
    for _ in range(2):
        assert len(memory(LARGEST_KEPT + 1)) == LARGEST_KEPT + 1
    assert len(made.sizes) == 2


def test_no_more_than_a_few_are_kept() -> None:
    made = Made()
    memory = FrameMemory(made)
    held = [memory(1000) for _ in range(MOST_KEPT + 3)]
    del held
    again = [memory(1000) for _ in range(MOST_KEPT + 3)]
    assert len(made.sizes) == MOST_KEPT + 3 + 3
    assert len(again) == MOST_KEPT + 3
