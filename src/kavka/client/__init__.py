"""The clients: producer, consumer and admin, for Kavka and for Apache Kafka.

`connection.py` and `cluster.py` are the core: asyncio code with no threads. The classes of
`kavka.aio` use it on the caller's loop. Each blocking client runs it on a loop in a separate thread
(`io_thread.py`).
"""
