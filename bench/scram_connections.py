"""New connections per second that authenticate with SCRAM-SHA-256, and the longest turn of Kavka's
event loop meanwhile.

The client opens a connection, authenticates and closes the connection, one at a time in each of
several processes. It speaks the protocol directly and derives the keys of the password once, as
clients do that cache them: deriving them takes longer than all the rest. If the CPU time of the
broker is about one second per second for Kavka, which has one loop, the broker is the bottleneck.
"""

from __future__ import annotations

import argparse
import hashlib
import hmac
import json
import socket
import struct
import subprocess
import sys
import time
from base64 import b64decode, b64encode
from pathlib import Path

from bench.measure import Options, OwnFigure, Row, in_pairs, paired
from bench.sides import KAVKA, SETTINGS, SecuredSide, Side, add_secured_listener
from kavka import Admin
from kavka.security.credentials import ScramKeys, derive_keys
from kavka.security.local_security import LocalSecurity
from kavka.security.sasl import SCRAM_SHA_256
from tests.support import wire
from tests.support.processes import dying_with_parent
from tests.support.watched_broker import MAX_TURN_S, WatchedBroker

USER, PASSWORD = "alice", "alice-secret"
PROCESSES = 4
DURATION_S = 6.0
WARM_UP_S = 8.0
SASL_HANDSHAKE, SASL_AUTHENTICATE = 17, 36
ROOT = Path(__file__).resolve().parents[1]


def run(sides: dict[str, Side], options: Options) -> list[Row]:
    broker_cpu: dict[tuple[str, int], float] = {}
    client_cpu: dict[tuple[str, int], float] = {}
    load: dict[tuple[str, int], float] = {}

    def once(side: Side, index: int, seconds: float = DURATION_S) -> float:
        """Return the connections per second."""
        assert isinstance(side, SecuredSide)
        start_cpu = side.cpu_seconds()
        connections, client_seconds = _connect(side.secured_port, seconds)
        broker_seconds = side.cpu_seconds() - start_cpu
        broker_cpu[side.name, index] = broker_seconds / connections * 1e6
        client_cpu[side.name, index] = client_seconds / connections * 1e6
        load[side.name, index] = broker_seconds / seconds
        return connections / seconds

    for side in sides.values():
        add_user(side.broker.bootstrap_servers)
        once(side, -1, WARM_UP_S)
    rates = in_pairs(sides, options.pairs, once, title="SCRAM-SHA-256, connections/s")
    turns = [(_longest_turn(sides[KAVKA].folder / f"watched-{index}") * 1000, 0.0) for index in range(options.pairs)]
    pairs = options.pairs
    return [
        Row(f"new connections with SCRAM-SHA-256, {PROCESSES} client processes", "/s", rates, "≥ 0.5 ×", 0.5),
        Row("broker CPU time per connection", "µs", paired(broker_cpu, pairs)),
        Row("broker CPU time per second", "s", paired(load, pairs)),
        Row("client CPU time per connection", "µs", paired(client_cpu, pairs)),
        OwnFigure("longest turn of the loop, its CPU time", "ms", turns, "≤ 50 ms", at_most=MAX_TURN_S * 1000),
    ]


def add_user(bootstrap: str) -> None:
    with Admin(bootstrap_servers=bootstrap) as admin:
        admin.alter_user_scram_credentials({USER: {SCRAM_SHA_256: PASSWORD}})


def _longest_turn(folder: Path) -> float:
    """Return the CPU time in seconds of the longest turn of another Kavka broker's loop."""
    broker = WatchedBroker(folder, overrides=SETTINGS, start=False)
    try:
        port = add_secured_listener(broker, new_security(folder / "security"))
        broker.start()
        add_user(broker.bootstrap_servers)
        _connect(port, 1.0)
        with broker.measured() as cost:
            _connect(port, DURATION_S)
        return cost.turn_s
    finally:
        broker.close()


def new_security(folder: Path) -> LocalSecurity:
    return LocalSecurity(folder, "SASL_PLAINTEXT", mechanisms=[SCRAM_SHA_256], users={USER: PASSWORD})


def _connect(port: int, seconds: float) -> tuple[int, float]:
    """Return the number of connections of all processes, and the CPU seconds of the processes."""
    argv = [sys.executable, "-m", "bench.scram_connections", str(port), str(seconds)]
    processes = [
        subprocess.Popen(dying_with_parent(argv), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT)
        for _ in range(PROCESSES)
    ]
    for process in processes:
        assert process.stdout is not None
        process.stdout.readline()  # the keys are derived
    for process in processes:
        assert process.stdin is not None
        process.stdin.write("go\n")
        process.stdin.flush()
    outputs = [process.communicate(timeout=seconds + 120)[0] for process in processes]
    if any(process.returncode for process in processes):
        raise RuntimeError("a client failed")
    reports = [json.loads(output) for output in outputs]
    return sum(report["connections"] for report in reports), sum(report["cpu"] for report in reports)


# --- the client


class Client:
    """Opens connections and authenticates. The frames are those of the Java client, without
    ApiVersions."""

    def __init__(self, port: int) -> None:
        self._address = ("127.0.0.1", port)
        self._bare = f"n={USER},r=benchmark"
        self._handshake = wire.request(SASL_HANDSHAKE, 1, wire.string(SCRAM_SHA_256))
        self._first = self._authenticate(f"n,,{self._bare}")
        self._keys: ScramKeys | None = None
        self._stored_key = b""

    def connect(self) -> None:
        """Authenticate on a new connection, check the broker's signature, and close."""
        # Without a timeout, which would double the system calls.
        with socket.socket() as sock:
            sock.connect(self._address)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            sock.sendall(self._handshake)
            (error,) = struct.unpack_from(">h", _receive(sock), 4)
            if error:
                raise RuntimeError(f"SaslHandshake: error {error}")
            sock.sendall(self._first)
            server_first = _token(_receive(sock))
            final, server_key, message = self._prove(server_first)
            sock.sendall(self._authenticate(final))
            signature = b"v=" + b64encode(hmac.digest(server_key, message, "sha256"))
            if _token(_receive(sock)).encode() != signature:
                raise RuntimeError("the signature of the broker is not valid")

    def _prove(self, server_first: str) -> tuple[str, bytes, bytes]:
        nonce, salt, iterations = (field[2:] for field in server_first.split(","))
        if self._keys is None:
            self._keys = derive_keys(SCRAM_SHA_256, PASSWORD, b64decode(salt), int(iterations))
            self._stored_key = hashlib.sha256(self._keys.client_key).digest()
        unproven = f"c=biws,r={nonce}"
        message = f"{self._bare},{server_first},{unproven}".encode()
        signature = int.from_bytes(hmac.digest(self._stored_key, message, "sha256"), "big")
        proof = (signature ^ int.from_bytes(self._keys.client_key, "big")).to_bytes(32, "big")
        return f"{unproven},p={b64encode(proof).decode()}", self._keys.server_key, message

    def _authenticate(self, message: str) -> bytes:
        return wire.request(SASL_AUTHENTICATE, 1, wire.blob(message.encode()))


def _receive(sock: socket.socket) -> bytes:
    """Return one response. A connection has one request at a time."""
    data = sock.recv(4096)
    while len(data) < 4 or len(data) < 4 + int.from_bytes(data[:4], "big"):
        more = sock.recv(4096)
        if not more:
            raise ConnectionResetError("the broker closed the connection")
        data += more
    return data[4:]


def _token(response: bytes) -> str:
    """Return the bytes of a SaslAuthenticate response, after the correlation id, the error code and
    the error message."""
    reader = wire.Reader(response)
    reader.int32()
    error, text = reader.int16(), reader.string()
    if error:
        raise RuntimeError(f"SaslAuthenticate: error {error}, {text}")
    return (reader.blob() or b"").decode()


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("port", type=int)
    parser.add_argument("seconds", type=float)
    options = parser.parse_args()
    client = Client(options.port)
    client.connect()
    print("ready", flush=True)
    sys.stdin.readline()
    start_cpu = time.process_time()
    end = time.perf_counter() + options.seconds
    connections = 0
    while time.perf_counter() < end:
        client.connect()
        connections += 1
    print(json.dumps({"connections": connections, "cpu": time.process_time() - start_cpu}))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
