"""The consumer.

`core.py` is the consumer as asyncio code without threads; its docstring lists the background tasks.
`fetcher.py` prefetches into the buffer, `coordinator.py` sends requests to the group's coordinator,
`classic.py` and `modern.py` are the members of the two group protocols (their states:
`member_states.py`), and `positions.py` determines positions. `consumer.py` and `aio.py` are the
blocking and the asyncio consumer. `_decode.py` is the hot path, which can be compiled.

Ownership: the application's thread takes records out of the buffer and moves positions past them.
All other state (the assignment, seeks, resets, pauses) changes on the event loop, and only in calls
that the application waits for. Background tasks (fetches, heartbeats, rebalances) read that state,
fill the buffer, and submit changes as tasks of the next poll.
"""
