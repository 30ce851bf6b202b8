"""The proxy of the chaos tests cuts and heals connections between real sockets."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.chaos.network import RESET, SILENCE, Network


class Echo:
    """A TCP server that sends back the received data."""

    def __init__(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address: tuple[str, int] = self._listener.getsockname()
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._echo, args=(connection,), daemon=True).start()

    def _echo(self, connection: socket.socket) -> None:
        with connection:
            while data := connection.recv(1000):
                connection.sendall(data)

    def close(self) -> None:
        self._listener.close()


@pytest.fixture
def network(tmp_path: Path) -> Iterator[Network]:
    network = Network(tmp_path / "network.out")
    yield network
    network.close()


@pytest.fixture
def echo() -> Iterator[Echo]:
    echo = Echo()
    yield echo
    echo.close()


def connect(port: int) -> socket.socket:
    return socket.create_connection(("127.0.0.1", port), 10)


def is_echoed(connection: socket.socket, data: bytes) -> bool:
    connection.sendall(data)
    connection.settimeout(10)
    return connection.recv(1000) == data


def is_silent(connection: socket.socket) -> bool:
    connection.settimeout(0.2)
    try:
        connection.recv(1000)
    except TimeoutError:
        return True
    return False


def is_broken(connection: socket.socket) -> bool:
    connection.settimeout(10)
    try:
        return connection.recv(1000) == b""
    except OSError:
        return True


def test_sent_data_arrives(network: Network, echo: Echo) -> None:
    with connect(network.listen("2", echo.address, comes_from="1")) as connection:
        assert is_echoed(connection, b"hello")


def test_silence_delays_all_data_until_the_cut_is_healed(network: Network, echo: Echo) -> None:
    port = network.listen("2", echo.address, comes_from="1")
    with connect(port) as early_connection:
        assert is_echoed(early_connection, b"hello")
        network.cut("1", "2", SILENCE)
        early_connection.sendall(b"first")
        assert is_silent(early_connection)
        with connect(port) as late_connection:
            late_connection.sendall(b"second")
            assert is_silent(late_connection)
            network.heal()
            early_connection.settimeout(10)
            late_connection.settimeout(10)
            assert early_connection.recv(1000) == b"first"
            assert late_connection.recv(1000) == b"second"


def test_a_reset_breaks_old_and_new_connections_until_the_cut_is_healed(network: Network, echo: Echo) -> None:
    port = network.listen("2", echo.address, comes_from="1")
    with connect(port) as connection:
        assert is_echoed(connection, b"hello")
        network.cut("2", "1", RESET)
        assert is_broken(connection)
    with connect(port) as connection:
        assert is_broken(connection)
    network.heal()
    with connect(port) as connection:
        assert is_echoed(connection, b"hello")


def test_a_cut_between_two_ends_does_not_affect_a_third_end(network: Network, echo: Echo) -> None:
    port = network.listen("3", echo.address, comes_from="1")
    network.cut("1", "2", RESET)
    with connect(port) as connection:
        assert is_echoed(connection, b"hello")


def test_the_connecting_process_is_identified_by_its_folder(network: Network, echo: Echo) -> None:
    network.assign_folder("me", Path(os.getcwd()))
    port = network.listen("2", echo.address)
    with connect(port) as connection:
        assert is_echoed(connection, b"hello")
        network.cut("me", "2", RESET)
        assert is_broken(connection)


def test_an_end_that_refuses_connections_can_still_connect(network: Network, echo: Echo) -> None:
    first = network.listen("1", echo.address, comes_from="2")
    second = network.listen("2", echo.address, comes_from="1")
    with connect(first) as connection, connect(second) as other:
        assert is_echoed(connection, b"hello")
        assert is_echoed(other, b"hello")
        network.refuse("1")
        assert is_broken(connection)
        assert is_echoed(other, b"hello")
    with pytest.raises(ConnectionRefusedError):
        connect(first)
    network.heal()
    with connect(first) as connection:
        assert is_echoed(connection, b"hello")
