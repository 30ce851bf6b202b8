"""A TCP proxy between a client and a broker that injects faults."""

from __future__ import annotations

import contextlib
import queue
import socket
import threading
import time
from collections.abc import Iterator


class Proxy:
    """Forwards connections to `target` in both directions.

    `cut_after(n)` closes each connection after n bytes of responses, even inside a response.
    `stall()` stops forwarding responses, and `resume()` continues. `drop_all()` closes all
    connections. `refuse(True)` also closes every new connection until `refuse(False)`.
    Requests arrive `delay` seconds later; the rate of their data is not limited."""

    def __init__(self, target: tuple[str, int], delay: float = 0.0) -> None:
        self.target = target
        self._delay = delay
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self._flowing = threading.Event()
        self._flowing.set()
        self._cut_after: int | None = None
        self._pairs: list[tuple[socket.socket, socket.socket]] = []
        self._closed = False
        self._refusing = False
        self.cuts = 0
        threading.Thread(target=self._accept, daemon=True).start()

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def cut_after(self, size: int | None) -> None:
        self._cut_after = size

    def stall(self) -> None:
        self._flowing.clear()

    def resume(self) -> None:
        self._flowing.set()

    def refuse(self, refuse: bool) -> None:
        self._refusing = refuse
        if refuse:
            self.drop_all()

    def drop_all(self) -> None:
        for pair in self._pairs:
            for side in pair:
                _close(side)
        self._pairs.clear()

    def close(self) -> None:
        self._closed = True
        self._flowing.set()
        self._listener.close()
        self.drop_all()

    def __enter__(self) -> Proxy:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _accept(self) -> None:
        while not self._closed:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            if self._refusing:
                _close(client)
                continue
            try:
                broker = socket.create_connection(self.target, 5)
            except OSError:
                _close(client)
                continue
            self._pairs.append((client, broker))
            threading.Thread(target=self._forward_requests, args=(client, broker), daemon=True).start()
            threading.Thread(target=self._forward_responses, args=(broker, client), daemon=True).start()

    def _forward_requests(self, client: socket.socket, broker: socket.socket) -> None:
        try:
            for data in self._delayed(client) if self._delay else iter(lambda: client.recv(1 << 16), b""):
                broker.sendall(data)
        except OSError:
            pass
        _close(broker)
        _close(client)

    def _delayed(self, client: socket.socket) -> Iterator[bytes]:
        """Yield the data of the client when it is due."""
        received: queue.SimpleQueue[tuple[float, bytes]] = queue.SimpleQueue()

        def receive() -> None:
            data = b" "
            while data:
                try:
                    data = client.recv(1 << 16)
                except OSError:
                    data = b""
                received.put((time.monotonic() + self._delay, data))

        threading.Thread(target=receive, daemon=True).start()
        while True:
            due, data = received.get()
            if not data:
                return
            time.sleep(max(0.0, due - time.monotonic()))
            yield data

    def _forward_responses(self, broker: socket.socket, client: socket.socket) -> None:
        forwarded = 0
        try:
            while data := broker.recv(1 << 16):
                while not self._flowing.wait(0.5):
                    if self._closed:
                        return
                limit = self._cut_after
                if limit is not None and forwarded + len(data) > limit:
                    client.sendall(data[: max(0, limit - forwarded)])
                    time.sleep(0.001)
                    self.cuts += 1
                    break
                forwarded += len(data)
                client.sendall(data)
        except OSError:
            pass
        _close(broker)
        _close(client)


def _close(side: socket.socket) -> None:
    with contextlib.suppress(OSError):
        side.shutdown(socket.SHUT_RDWR)
    side.close()
