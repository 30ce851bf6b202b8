"""The consumer.

`core.py` is the consumer as such, asyncio code with no threads, with its parts beside it: `fetcher.py` fills the buffer
ahead of the program, `coordinator.py` speaks to the group's coordinator, `classic.py` and `modern.py` are the two ways
to be a member, `offsets.py` finds positions. `blocking.py` and `asynchronous.py` are its two faces. `_decode.py` is the
hot part, which is compiled.

Who may change what. The program's thread takes records out of the buffer and moves positions over them. Everything else
(the assignment, positions that are sought or reset, pauses) is changed on the loop, and only by a call that the program
is waiting for. What runs in the background (fetching, heartbeats, rebalances) reads that, fills the buffer, and leaves
errands for the next poll to carry out.
"""
