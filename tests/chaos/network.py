"""A proxy process between the brokers, and between brokers and ZooKeeper, that can cut connections.

Every broker advertises a port of this process to other brokers, and connects to ZooKeeper through
another port of this process. The proxy looks up the process that connects to a port in /proc, by
its socket and its working directory.

A cut is between two ends, in both directions. "reset" closes connections, and closes new
connections before the first byte. "silence" delays all data until the cut is healed, as if packets
were dropped. An end that refuses connections has no listening socket, as if its process had ended;
it can still connect to others.

    python -m tests.chaos.network     commands on stdin, responses on stdout, a JSON object per line
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.support.processes import dying_with_parent

ZOOKEEPER = "zk"
RESET = "reset"
SILENCE = "silence"
CHUNK = 1 << 16


class Network:
    """Starts the proxy process and sends commands to it. Tests use this class."""

    def __init__(self, log: Path) -> None:
        with log.open("ab") as errors:
            self._process = subprocess.Popen(
                dying_with_parent([sys.executable, "-m", "tests.chaos.network"]),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                cwd=Path(__file__).resolve().parents[2],
            )

    def listen(self, to: str, target: tuple[str, int], comes_from: str | None = None) -> int:
        """Open a port that forwards to `target`, the end with the name `to`. Return the port. The
        connecting end is looked up unless `comes_from` names it."""
        return int(self._send(do="listen", to=to, host=target[0], port=target[1], comes_from=comes_from)["port"])

    def assign_folder(self, end: str, folder: Path) -> None:
        """Assign the connections of processes with this working directory to an end."""
        self._send(do="owner", end=end, folder=str(folder))

    def cut(self, first: str, second: str, how: str) -> None:
        self._send(do="cut", ends=[first, second], how=how)

    def refuse(self, end: str) -> None:
        """Refuse connections to this end, from all other ends, until `heal`."""
        self._send(do="refuse", end=end)

    def heal(self) -> None:
        self._send(do="heal")

    def _send(self, **command: Any) -> dict[str, Any]:
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(json.dumps(command) + "\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"the proxy process ended with {self._process.poll()}")
        response: dict[str, Any] = json.loads(line)
        return response

    def close(self) -> None:
        self._process.kill()
        self._process.wait()


class Link:
    """One connection through the proxy."""

    def __init__(self, ends: frozenset[str], to: str, writers: list[asyncio.StreamWriter]) -> None:
        self.ends = ends
        self.to = to
        self.writers = writers
        self.flowing = asyncio.Event()
        self.flowing.set()

    def abort(self) -> None:
        for writer in self.writers:
            writer.transport.abort()


class Switch:
    """All connections and cuts of the proxy."""

    def __init__(self) -> None:
        self._cuts: dict[frozenset[str], str] = {}
        self._links: set[Link] = set()
        self._owners: dict[str, str] = {}
        self._servers: dict[str, list[asyncio.Server]] = {}
        # The ports of closed servers, with the commands that opened them.
        self._refusing: list[tuple[int, dict[str, Any]]] = []
        self._ports: dict[str, list[tuple[int, dict[str, Any]]]] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    async def handle(self, command: dict[str, Any]) -> dict[str, Any]:
        match command["do"]:
            case "listen":
                return {"port": await self._listen(command)}
            case "owner":
                self._owners[command["folder"]] = command["end"]
            case "cut":
                ends = frozenset(command["ends"])
                self._cuts[ends] = command["how"]
                for link in [link for link in self._links if link.ends == ends]:
                    if command["how"] == RESET:
                        link.abort()
                    else:
                        link.flowing.clear()
            case "refuse":
                end = command["end"]
                for server in self._servers.pop(end):
                    server.close()
                for link in [link for link in self._links if link.to == end]:
                    link.abort()
                self._refusing += self._ports.pop(end)
            case "heal":
                self._cuts.clear()
                refusing, self._refusing = self._refusing, []
                for port, listen_command in refusing:
                    await self._listen(listen_command, port)
                for link in self._links:
                    link.flowing.set()
        return {}

    async def _listen(self, command: dict[str, Any], port: int = 0) -> int:
        async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            task = asyncio.current_task()
            assert task is not None
            self._tasks.add(task)
            try:
                await self._connected(command, reader, writer)
            finally:
                self._tasks.discard(task)
                writer.transport.abort()

        server = await asyncio.start_server(connected, "127.0.0.1", port, backlog=200)
        port = int(server.sockets[0].getsockname()[1])
        self._servers.setdefault(command["to"], []).append(server)
        self._ports.setdefault(command["to"], []).append((port, command))
        return port

    async def _connected(
        self, command: dict[str, Any], reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        comes_from = command["comes_from"] or self._owner(writer.get_extra_info("peername")[1])
        link = Link(frozenset((comes_from, command["to"])), command["to"], [writer])
        how = self._cuts.get(link.ends)
        if how == RESET:
            return
        self._links.add(link)
        try:
            if how == SILENCE:
                link.flowing.clear()
                await link.flowing.wait()
            try:
                target_reader, target_writer = await asyncio.open_connection(command["host"], command["port"])
            except OSError:
                return
            link.writers.append(target_writer)
            first = asyncio.ensure_future(_forward(link, reader, target_writer))
            second = asyncio.ensure_future(_forward(link, target_reader, writer))
            await asyncio.wait((first, second), return_when=asyncio.FIRST_COMPLETED)
            for task in (first, second):
                task.cancel()
            await asyncio.gather(first, second, return_exceptions=True)
        finally:
            self._links.discard(link)
            link.abort()

    def _owner(self, port: int) -> str:
        """Return the end whose process connects from this port."""
        inode = _inode(port)
        for pid in filter(str.isdigit, os.listdir("/proc")) if inode is not None else ():
            with contextlib.suppress(OSError):
                end = self._owners.get(os.readlink(f"/proc/{pid}/cwd"))
                if end is not None and _has_socket(pid, inode):
                    return end
        return "?"


async def _forward(link: Link, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):
        while data := await reader.read(CHUNK):
            await link.flowing.wait()
            writer.write(data)
            await writer.drain()


def _inode(port: int) -> str | None:
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        for line in Path(table).read_text().splitlines()[1:]:
            fields = line.split()
            if int(fields[1].rpartition(":")[2], 16) == port and fields[9] != "0":
                return fields[9]
    return None


def _has_socket(pid: str, inode: str | None) -> bool:
    target = f"socket:[{inode}]"
    with contextlib.suppress(OSError):
        for name in os.listdir(f"/proc/{pid}/fd"):
            with contextlib.suppress(OSError):
                if os.readlink(f"/proc/{pid}/fd/{name}") == target:
                    return True
    return False


async def main() -> None:
    switch = Switch()
    commands = asyncio.StreamReader()
    loop = asyncio.get_running_loop()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(commands), sys.stdin)
    while line := await commands.readline():
        print(json.dumps(await switch.handle(json.loads(line))), flush=True)


if __name__ == "__main__":
    asyncio.run(main())
