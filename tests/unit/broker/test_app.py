"""A broker in this process: failed starts, signals, and changed settings."""

from __future__ import annotations

import asyncio
import errno
import os
import signal
import socket
import threading
import time

import pytest

from kavka.broker.app import Broker, serve
from kavka.broker.settings import Settings
from kavka.common.config import ConfigError
from kavka.storage import loading
from kavka.storage.log import Log
from kavka.storage.log_dir import LogDirError


def settings(folder, **overrides: str) -> Settings:
    values = {name.replace("_", "."): value for name, value in overrides.items()}
    return Settings({"log.dirs": str(folder), "listeners": "PLAINTEXT://127.0.0.1:0", **values})


def run(body) -> None:
    """Check that no thread of the broker remains."""
    asyncio.run(asyncio.wait_for(body(), 30))
    remaining = [thread.name for thread in threading.enumerate() if thread.name.startswith(("kavka", "recover"))]
    assert not remaining


def test_port_in_use_is_reported_in_one_line_and_releases_log_directories(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as holder:
        port = holder.getsockname()[1]

        async def listeners() -> None:
            with pytest.raises(ConfigError) as refused:
                await Broker(settings(tmp_path, listeners=f"PLAINTEXT://127.0.0.1:{port}")).start()
            assert (
                str(refused.value)
                == f"listeners: PLAINTEXT://127.0.0.1:{port} is in use by another process: stop it, or use another port"
            )

        async def metrics() -> None:
            address = f"http://127.0.0.1:{port}"
            with pytest.raises(ConfigError) as refused:
                await Broker(settings(tmp_path, metrics_listener=address)).start()
            assert (
                str(refused.value)
                == f"metrics.listener: {address} is in use by another process: stop it, or use another port"
            )

        run(listeners)
        run(metrics)

    async def starts() -> None:
        broker = Broker(settings(tmp_path))
        await broker.start()
        await broker.stop()

    run(starts)


def test_address_of_another_machine_is_reported_in_one_line(tmp_path):
    async def body() -> None:
        with pytest.raises(ConfigError, match=r"listeners: PLAINTEXT://192\.0\.2\.1:9092 cannot be bound: "):
            await Broker(settings(tmp_path, listeners="PLAINTEXT://192.0.2.1:9092")).start()

    run(body)


@pytest.mark.parametrize("step", ["_start_coordinators", "_start_accepting", "_registration"])
def test_failed_start_leaves_no_thread_port_or_lock(tmp_path, monkeypatch, step):
    ports: list[int] = []

    async def fails() -> None:
        broker = Broker(settings(tmp_path))

        def broken(*args):
            ports.extend(listener.port for listener in broker.listeners)
            raise ZeroDivisionError

        monkeypatch.setattr(broker, step, broken)
        with pytest.raises(ZeroDivisionError):
            await broker.start()

    async def starts() -> None:
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", ports[0]))
        broker = Broker(settings(tmp_path))
        await broker.start()
        await broker.stop()

    run(fails)
    run(starts)


def test_sigterm_during_recovery_ends_start_after_current_logs(tmp_path, monkeypatch):
    for n in range(50):
        (tmp_path / f"t-{n}").mkdir()
    opened = []
    real = Log.open

    def slow(*args, **more):
        opened.append(args)
        if len(opened) == 3:
            os.kill(os.getpid(), signal.SIGTERM)
        if len(opened) >= 3:
            # The event loop handles the signal long before all other logs would be open.
            time.sleep(0.5)
        return real(*args, **more)

    monkeypatch.setattr(loading.Log, "open", slow)
    ready = []

    async def body() -> None:
        await serve(settings(tmp_path), ready.append)

    run(body)
    assert not ready
    assert 3 <= len(opened) < 50
    monkeypatch.undo()

    async def starts() -> None:
        broker = Broker(settings(tmp_path))
        await broker.start()
        await broker.stop()

    run(starts)


def test_sigterm_stops_ready_broker(tmp_path):
    async def body() -> None:
        await serve(settings(tmp_path), lambda listeners: os.kill(os.getpid(), signal.SIGTERM))

    run(body)
    assert (tmp_path / ".kafka_cleanshutdown").exists()


def test_broker_stops_when_all_log_directories_failed(tmp_path):
    async def body() -> None:
        brokers = []
        init = Broker.__init__

        def remember(self, *args, **options):
            init(self, *args, **options)
            brokers.append(self)

        def ready(_listeners) -> None:
            [broker] = brokers
            manager = broker.log_manager
            asyncio.get_running_loop().call_soon(
                manager.report_dir_failure, manager.dirs[0], OSError(errno.EIO, "Input/output error"), "a test"
            )

        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(Broker, "__init__", remember)
            with pytest.raises(LogDirError, match="all log directories have failed"):
                await serve(settings(tmp_path / "data", metadata_dir=str(tmp_path)), ready)

    run(body)


def test_dynamic_settings_take_effect(tmp_path):
    async def body() -> None:
        broker = Broker(settings(tmp_path))
        await broker.start()
        try:
            changes = {
                "max.connections": "1",
                "max.connections.per.ip": "5",
                "num.io.threads": "3",
                "log.cleaner.backoff.ms": "77",
                "producer.id.expiration.ms": "1234",
            }
            await broker.configs.change_broker(None, lambda _: changes)
            assert broker.workers._threads == 3
            assert broker.log_manager.settings.cleaner.backoff_ms == 77
            assert broker.log_manager.settings.producer_id_expiration_ms == 1234
            port = broker.listeners[0].port
            first = socket.create_connection(("127.0.0.1", port))
            second = socket.create_connection(("127.0.0.1", port))
            await asyncio.sleep(0.05)
            assert len(broker.server.connections) == 1
            await broker.configs.change_broker(None, lambda _: {"max.connections": "2"})
            await asyncio.sleep(0.05)
            assert len(broker.server.connections) == 2
            first.close()
            second.close()
        finally:
            await broker.stop()

    async def restart() -> None:
        broker = Broker(settings(tmp_path))
        await broker.start()
        try:
            assert broker.server.limits._settings.broker.max_connections == 2
        finally:
            await broker.stop()

    run(body)
    run(restart)
