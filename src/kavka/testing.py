"""A broker for tests, and a pytest fixture.

    with kavka.testing.Broker(num_partitions=3) as broker:
        producer = KafkaProducer(bootstrap_servers=broker.bootstrap_servers)

    def test_something(kavka_broker):
        producer = KafkaProducer(bootstrap_servers=kavka_broker.bootstrap_servers)

The broker runs in a separate process, on a free port, with its data in a temporary folder. It stops
at the end of the block, or when the test process ends. pytest loads this module in every project
where Kavka is installed, so the module has few imports.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pytest

    from kavka.security.local_security import LocalSecurity

LOG_TAIL_CHARACTERS = 6000


class BrokerFailed(RuntimeError):
    """A broker did not start, did not stop, or is not running. After a failed start or stop, the
    message contains the end of the broker's log."""


class Broker:
    """A broker process.

    Settings are keywords with underscores for dots (`log_retention_ms=1000`), or a mapping with
    Kafka's names. With `log_dir`, the data remains in that folder. Without `log_dir`, `close`
    deletes the data. After `stop()` or `kill()`, `start()` starts the broker with the same data on
    the same port.

    `security` is a security protocol, or the arguments of `LocalSecurity` (protocol, mechanisms,
    users, client_auth): the broker then has TLS with certificates of a new authority, and SASL with
    these users. `client_settings` returns the settings of a client.
    """

    def __init__(
        self,
        config: Mapping[str, object] | None = None,
        *,
        log_dir: str | os.PathLike[str] | None = None,
        start_timeout: float = 30.0,
        security: str | Mapping[str, Any] | None = None,
        **overrides: object,
    ) -> None:
        self._config = {name: _text(value) for name, value in (config or {}).items()}
        self._config |= {name.replace("_", "."): _text(value) for name, value in overrides.items()}
        self._start_timeout = start_timeout
        self._security_options = {"protocol": security} if isinstance(security, str) else security
        self._security: LocalSecurity | None = None
        self._folder: tempfile.TemporaryDirectory[str] | None = None
        self._log_dir = None if log_dir is None else Path(log_dir)
        self._process: subprocess.Popen[bytes] | None = None
        self._port = 0

    # --- addresses and files

    @property
    def port(self) -> int:
        return self._port

    @property
    def bootstrap_servers(self) -> str:
        return f"127.0.0.1:{self._port}"

    @property
    def security(self) -> LocalSecurity:
        """The certificates and users of a broker with `security`."""
        if self._security is None:
            if self._security_options is None:
                raise BrokerFailed("the broker has no security; pass security='SASL_SSL', for example")
            from kavka.security.local_security import LocalSecurity

            options = {"users": {"admin": "admin-secret"}, **self._security_options}
            self._security = LocalSecurity(self._path / "security", **options)
        return self._security

    def client_settings(self, user: str | None = None, mechanism: str | None = None) -> dict[str, str]:
        """The settings of a client of this broker, with Kafka's names."""
        settings = {"bootstrap.servers": self.bootstrap_servers}
        if self._security_options is not None:
            settings |= self.security.client_settings(user, mechanism)
        return settings

    @property
    def log_dir(self) -> Path:
        return self._log_dir or self._path / "data"

    @property
    def log_file(self) -> Path:
        """The log file of the broker, with the output of all its starts."""
        return self._path / "broker.log"

    @property
    def pid(self) -> int:
        return self._running.pid

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def log_tail(self, characters: int = LOG_TAIL_CHARACTERS) -> str:
        """Return the end of the broker's log, for the message of a failed test."""
        if self._folder is None:
            return ""
        try:
            return self.log_file.read_text(errors="replace")[-characters:]
        except OSError:
            return ""

    # --- start and stop

    def start(self) -> Broker:
        """Start the broker and wait until it is ready. Raises BrokerFailed if it is not ready
        within `start_timeout` seconds. Has no effect if the broker is running."""
        if self.running:
            return self
        read_end, write_end = os.pipe()
        try:
            with self.log_file.open("ab") as log:
                self._process = subprocess.Popen(
                    [sys.executable, "-m", "kavka.cli.main", "server", "--stop-on-eof", "--ready-fd", str(write_end)]
                    + self._new_users()
                    + [f"--override={name}={value}" for name, value in self._settings().items()],
                    # The broker stops when this pipe is closed, even if this process is killed.
                    stdin=subprocess.PIPE,
                    stdout=log,
                    stderr=log,
                    pass_fds=(write_end,),
                    env={**os.environ, "KAVKA_RUN_DIR": str(self._path / "run")},
                    # Ctrl-C interrupts only the test. The end of the test stops the broker.
                    start_new_session=True,
                )
        finally:
            os.close(write_end)
        try:
            listeners = _read_until_closed(read_end, time.monotonic() + self._start_timeout)
        finally:
            os.close(read_end)
        if not listeners:
            self.kill()
            raise BrokerFailed(f"the broker did not start\n{self.log_tail()}")
        self._port = int(listeners.splitlines()[0].rpartition(":")[2])
        return self

    def stop(self, timeout: float = 30.0) -> int:
        """Stop the broker with SIGTERM, wait for its end, and return its exit code. After `timeout`
        seconds, kills the broker and raises BrokerFailed."""
        if self._process is None:
            return 0
        if self.running:
            self._process.terminate()
        try:
            code = self._process.wait(timeout)
        except subprocess.TimeoutExpired:
            self.kill()
            raise BrokerFailed(f"the broker did not stop within {timeout:g} s\n{self.log_tail()}") from None
        self._close_pipe()
        return code

    def kill(self) -> None:
        """Kill the broker with SIGKILL, like a crash."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._close_pipe()

    def restart(self) -> Broker:
        """Stop and start the broker, with the same data on the same port."""
        self.stop()
        return self.start()

    def close(self) -> None:
        """Kill the broker and delete its temporary folder."""
        self.kill()
        if self._folder is not None:
            self._folder.cleanup()
            self._folder = None

    def __enter__(self) -> Broker:
        try:
            return self.start()
        except BaseException:
            self.close()
            raise

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # --- internals

    @property
    def _path(self) -> Path:
        if self._folder is None:
            self._folder = tempfile.TemporaryDirectory(prefix="kavka-", ignore_cleanup_errors=True)
        return Path(self._folder.name)

    @property
    def _running(self) -> subprocess.Popen[bytes]:
        if self._process is None:
            raise BrokerFailed("the broker is not running")
        return self._process

    def _settings(self) -> dict[str, str]:
        defaults = {
            "listeners": f"PLAINTEXT://127.0.0.1:{self._port}",
            "log.dirs": str(self.log_dir),
            # Most tests have one consumer per group, so there is no other member to wait for.
            "group.initial.rebalance.delay.ms": "0",
        }
        if self._security_options is not None:
            defaults |= self.security.broker_settings()
            defaults["listeners"] = f"{self.security.protocol.value}://127.0.0.1:{self._port}"
        return {**defaults, **self._config}

    def _new_users(self) -> list[str]:
        if self._security_options is None or not (users := self.security.new_users()):
            return []
        path = self._path / "users"
        path.write_text("\n".join(users))
        return [f"--add-scram=@{path}"]

    def _close_pipe(self) -> None:
        if self._process is not None and self._process.stdin is not None:
            self._process.stdin.close()
        self._process = None


def _text(value: object) -> str:
    return ("true" if value else "false") if isinstance(value, bool) else str(value)


def _read_until_closed(descriptor: int, deadline: float) -> str:
    """Return the text that is written to a pipe until the writer closes it, or an empty string
    after the deadline."""
    import select

    pieces: list[bytes] = []
    while (remaining := deadline - time.monotonic()) > 0 and select.select([descriptor], [], [], remaining)[0]:
        piece = os.read(descriptor, 4096)
        if not piece:
            return b"".join(pieces).decode()
        pieces.append(piece)
    return ""


def _define_plugin() -> dict[str, Any]:
    """Return the pytest fixture and hook by name. Called only if pytest is loaded, because `Broker`
    does not require pytest."""
    import pytest

    @pytest.fixture
    def kavka_broker() -> Iterator[Broker]:
        """A new broker for each test; clients connect to `.bootstrap_servers`."""
        with Broker() as broker:
            yield broker

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(item: pytest.Item) -> Any:
        report = yield
        broker = getattr(item, "funcargs", {}).get("kavka_broker")
        if report.failed and isinstance(broker, Broker):
            report.sections.append(("Kavka broker log", broker.log_tail()))
        return report

    return {"kavka_broker": kavka_broker, "pytest_runtest_makereport": pytest_runtest_makereport}


if "pytest" in sys.modules:
    globals().update(_define_plugin())
