"""Runs a command line with Kavka's tool and with Apache's tool, and compares the outputs."""

from __future__ import annotations

import re
import time
import uuid
from collections.abc import Callable
from difflib import ndiff

from kavka import Admin
from tests.support.cluster import Cluster
from tests.support.processes import wait_until
from tests.support.tools import ApacheTools, Result, run_kavka

AGREEMENT_TIMEOUT_S = 20.0
_TOPIC_ID = re.compile(r"(TopicId: )\S{22}")


def _compare(kavka: str, apache: str, ordered: bool) -> None:
    kavka_lines, apache_lines = kavka.splitlines(keepends=True), apache.splitlines(keepends=True)
    if not ordered:
        kavka_lines, apache_lines = sorted(kavka_lines), sorted(apache_lines)
    if kavka_lines != apache_lines:
        raise AssertionError("".join(ndiff(apache_lines, kavka_lines)))


class SideBySide:
    """Runs both tools on a cluster.

    In arguments, `{t}` is replaced by a topic, `{g}` by a group, and `{who}` by "ours" or "java".
    Commands that change something use different names of equal length for Kavka's and Apache's
    tool. Commands that only read use the same name.
    """

    def __init__(self, cluster: Cluster, apache: ApacheTools) -> None:
        self.cluster = cluster
        self.apache = apache
        unique = uuid.uuid4().hex[:8]
        self.names = {"ours": f"ours-{unique}", "java": f"java-{unique}"}

    def _arguments(self, args: tuple[str, ...], side: str) -> list[str]:
        name = self.names[side]
        return [arg.replace("{t}", name).replace("{g}", f"g-{name}").replace("{who}", side) for arg in args]

    def run(self, tool: str, *args: str, read_only: bool = False) -> tuple[Result, Result]:
        """Return the results of Kavka's and Apache's tool."""
        servers = ("--bootstrap-server", self.cluster.bootstrap_servers)
        kavka = run_kavka(tool, *servers, *self._arguments(args, "ours"))
        apache = self.apache.run(tool, *servers, *self._arguments(args, "ours" if read_only else "java"))
        return kavka, apache

    def _without_names(self, text: str) -> str:
        for name in self.names.values():
            text = text.replace(name, "NAME")
        return _TOPIC_ID.sub(r"\1ID", text)

    def assert_equal_except_names(self, kavka: str, apache: str) -> None:
        """Raise AssertionError if the outputs differ in more than the names and topic ids."""
        _compare(self._without_names(kavka), self._without_names(apache), True)

    def assert_same_output(self, tool: str, *args: str, ordered: bool = True) -> str:
        """Compare the outputs of a read-only command byte for byte, and return Kavka's. Without
        `ordered`, compare the lines in any order. Retry until the outputs agree, since the tools
        may have used brokers with different metadata."""
        deadline = time.monotonic() + AGREEMENT_TIMEOUT_S
        while True:
            kavka, apache = self.run(tool, *args, read_only=True)
            assert (kavka.code, apache.code) == (0, 0), (kavka, apache)
            try:
                _compare(kavka.out, apache.out, ordered)
                return kavka.out
            except AssertionError:
                if time.monotonic() > deadline:
                    raise
            time.sleep(0.2)

    def assert_same_effect(self, tool: str, *args: str, ordered: bool = True, code: int = 0) -> str:
        """Compare the outputs of a command that changes something, except for the names. Return
        Kavka's output."""
        kavka, apache = self.run(tool, *args)
        assert (kavka.code, apache.code) == (code, code), (kavka, apache)
        _compare(self._without_names(kavka.out), self._without_names(apache.out), ordered)
        return kavka.out

    def assert_same_failure(self, tool: str, *args: str, message: str = "") -> str:
        """Check that both tools exit with 1, and that Kavka's prints one line on standard error.
        The line must contain `message`. Without `message`, the output of Apache's tool must contain
        the line. Return the line without the names."""
        kavka, apache = self.run(tool, *args)
        assert (kavka.code, apache.code) == (1, 1), (kavka, apache)
        assert kavka.err.count("\n") == 1, kavka.err
        line = self._without_names(kavka.err.strip())
        if message:
            assert message in line
        else:
            line = line.removeprefix(f"kavka {tool}: ").removesuffix(" (--help shows the options)")
            output = apache.out + apache.err
            assert line in self._without_names(output), f"{line}\n---\n{output}"
        return line

    # --- waiting until a change has reached every broker

    def wait_everywhere(self, condition: Callable[[Admin], bool], what: str) -> None:
        for number in self.cluster.alive():
            with Admin(bootstrap_servers=self.cluster.brokers[number].bootstrap_servers) as admin:
                wait_until(lambda admin=admin: condition(admin), timeout=60, what=what, interval=0.1)  # type: ignore[misc]

    def wait_until_in_sync(self, partitions: int) -> None:
        """Wait until all brokers list both topics, with leaders and with all replicas in sync."""

        def is_ready(admin: Admin) -> bool:
            topics = admin.list_topics()
            if not all(name in topics for name in self.names.values()):
                return False
            descriptions = admin.describe_topics(list(self.names.values())).values()
            return all(
                len(topic.partitions) == partitions
                and all(p.leader is not None and len(p.isr) == len(p.replicas) for p in topic.partitions)
                for topic in descriptions
            )

        self.wait_everywhere(is_ready, f"{partitions} partitions of {self.names}")

    def wait_until_deleted(self) -> None:
        self.wait_everywhere(
            lambda admin: not set(self.names.values()) & set(admin.list_topics()), f"deletion of {self.names}"
        )
