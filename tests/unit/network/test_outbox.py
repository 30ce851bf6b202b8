"""The output of a connection: order, partial sends, files by sendfile."""

from __future__ import annotations

import asyncio
import os
import socket

import pytest

from kavka.network.zero_copy import FileShrank, Outbox
from kavka.storage.file_slice import FileSlice, LogFile


async def read_all(sock: socket.socket, size: int) -> bytes:
    loop = asyncio.get_running_loop()
    received = bytearray()
    while len(received) < size:
        chunk = await asyncio.wait_for(loop.sock_recv(sock, 65536), 5)
        if not chunk:
            break
        received += chunk
    return bytes(received)


def pair() -> tuple[socket.socket, socket.socket]:
    sock, peer = socket.socketpair()
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 8192)
    for end in (sock, peer):
        end.setblocking(False)
    return sock, peer


def make_file(path, content: bytes) -> LogFile:
    path.write_bytes(content)
    return LogFile(str(path), len(content))


def test_bytes_and_file_slices_arrive_in_order_with_partial_sends(tmp_path):
    content = os.urandom(300_000)
    file = make_file(tmp_path / "a.log", content)

    async def scenario() -> None:
        sock, peer = pair()
        outbox = Outbox(asyncio.get_running_loop(), sock, lambda: outbox.on_writable())
        outbox.send([b"head", FileSlice(file, 100, 200_000), b"tail" * 50_000])
        outbox.send([b"second", FileSlice(file, 0, 5)])
        expected = b"head" + content[100:200_100] + b"tail" * 50_000 + b"second" + content[:5]
        assert not outbox.is_empty
        assert await read_all(peer, len(expected)) == expected
        assert outbox.is_empty
        assert outbox.queued_bytes == 0
        sock.close()
        peer.close()

    asyncio.run(scenario())


def test_a_truncated_file_fails_the_send(tmp_path):
    file = make_file(tmp_path / "a.log", b"x" * 100_000)

    async def scenario() -> None:
        sock, peer = pair()
        outbox = Outbox(asyncio.get_running_loop(), sock, lambda: None)
        piece = FileSlice(file, 0, 100_000)
        os.truncate(file.path, 40)
        outbox.send([b"head", piece])
        with pytest.raises(FileShrank):
            outbox.on_writable()
        small = Outbox(asyncio.get_running_loop(), sock, lambda: None)
        with pytest.raises(FileShrank):
            small.send([b"head", FileSlice(file, 0, 100)])
        sock.close()
        peer.close()

    asyncio.run(scenario())


def test_a_small_response_is_sent_in_one_call(tmp_path, monkeypatch):
    file = make_file(tmp_path / "a.log", b"x" * 1000)
    monkeypatch.setattr(os, "sendfile", None)

    async def scenario() -> None:
        sock, peer = pair()
        outbox = Outbox(asyncio.get_running_loop(), sock, lambda: None)
        outbox.send([b"head", FileSlice(file, 100, 200), b"tail"])
        assert peer.recv(1000) == b"head" + b"x" * 200 + b"tail"
        assert outbox.is_empty
        sock.close()
        peer.close()

    asyncio.run(scenario())


def test_file_slices_do_not_count_as_queued_bytes(tmp_path):
    file = make_file(tmp_path / "a.log", b"x" * 1_000_000)

    async def scenario() -> None:
        sock, peer = pair()
        outbox = Outbox(asyncio.get_running_loop(), sock, lambda: None)
        outbox.send([FileSlice(file, 0, 1_000_000), b"y" * 1000])
        assert outbox.queued_bytes == 1000
        outbox.close()
        sock.close()
        peer.close()

    asyncio.run(scenario())
