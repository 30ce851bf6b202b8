"""The clients: producer, consumer and admin, for Kavka and for Apache Kafka.

`connection.py` and `cluster.py` are the core: asyncio code without threads. The classes of
`kavka.aio` run on the caller's loop. Each blocking client runs the same code on a loop in a
separate thread (`io_thread.py`).
"""
