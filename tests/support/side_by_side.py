"""The same command line given to our tool and to Apache's of the same name, and what both say
compared."""

from __future__ import annotations

import re
import time
import uuid
from collections.abc import Callable
from difflib import ndiff

from kavka import Admin
from tests.support.cluster import Cluster
from tests.support.processes import wait_until
from tests.support.tools import ApacheTools, Result, ours

AGREE_S = 20.0
_IDS = re.compile(r"(TopicId: )\S{22}")


def _compare(mine: str, its: str, order: bool) -> None:
    if not order:
        mine, its = ("".join(sorted(text.splitlines(keepends=True))) for text in (mine, its))
    if mine != its:
        raise AssertionError("".join(ndiff(its.splitlines(keepends=True), mine.splitlines(keepends=True))))


class SideBySide:
    """`{t}` in an argument is a topic and `{g}` a group. Commands that change something use
    separate names of equal length for our tool and Apache's; commands that only read use the
    same name."""

    def __init__(self, cluster: Cluster, apache: ApacheTools) -> None:
        self.cluster = cluster
        self.apache = apache
        unique = uuid.uuid4().hex[:8]
        self.names = {"ours": f"ours-{unique}", "java": f"java-{unique}"}

    def _arguments(self, args: tuple[str, ...], who: str) -> list[str]:
        name = self.names[who]
        return [arg.replace("{t}", name).replace("{g}", f"g-{name}").replace("{who}", who) for arg in args]

    def run(self, tool: str, *args: str, looking: bool = False) -> tuple[Result, Result]:
        servers = ("--bootstrap-server", self.cluster.bootstrap_servers)
        our_output = ours(tool, *servers, *self._arguments(args, "ours"))
        other = self.apache.run(tool, *servers, *self._arguments(args, "ours" if looking else "java"))
        return our_output, other

    def _plain(self, text: str) -> str:
        for name in self.names.values():
            text = text.replace(name, "NAME")
        return _IDS.sub(r"\1ID", text)

    def same_but_for_names(self, mine: str, its: str) -> None:
        _compare(self._plain(mine), self._plain(its), True)

    def looks_same(self, tool: str, *args: str, order: bool = True) -> str:
        """Compare the output of a read-only command byte for byte; without `order`, compare the
        lines in any order. Returns our output. The tools may have used brokers with different
        metadata: retry until the outputs agree."""
        deadline = time.monotonic() + AGREE_S
        while True:
            ours, other = self.run(tool, *args, looking=True)
            assert (ours.code, other.code) == (0, 0), (ours, other)
            try:
                _compare(ours.out, other.out, order)
                return ours.out
            except AssertionError:
                if time.monotonic() > deadline:
                    raise
            time.sleep(0.2)

    def does_same(self, tool: str, *args: str, order: bool = True, code: int = 0) -> str:
        """Each with its own topic or group: the same output but for their names."""
        ours, other = self.run(tool, *args)
        assert (ours.code, other.code) == (code, code), (ours, other)
        _compare(self._plain(ours.out), self._plain(other.out), order)
        return ours.out

    def fails_same(self, tool: str, *args: str, says: str = "") -> str:
        """Both end with 1; ours in one line on standard error that is in what Apache's says, or has
        the words given where theirs are other ones."""
        ours, other = self.run(tool, *args)
        assert (ours.code, other.code) == (1, 1), (ours, other)
        assert ours.err.count("\n") == 1, ours.err
        line = self._plain(ours.err.strip())
        if says:
            assert says in line
        else:
            line = line.removeprefix(f"kavka {tool}: ").removesuffix(" (--help shows the options)")
            assert line in self._plain(other.out + other.err), f"{line}\n---\n{other.out}{other.err}"
        return line

    # --- waiting until every broker knows

    def everywhere(self, true: Callable[[Admin], bool], what: str) -> None:
        for number in self.cluster.alive():
            with Admin(bootstrap_servers=self.cluster.brokers[number].bootstrap_servers) as admin:
                wait_until(lambda admin=admin: true(admin), timeout=60, what=what, interval=0.1)  # type: ignore[misc]

    def settle(self, partitions: int) -> None:
        """Until both topics are known everywhere, with leaders and all replicas in sync."""

        def there(admin: Admin) -> bool:
            topics = admin.list_topics()
            if not all(name in topics for name in self.names.values()):
                return False
            descriptions = admin.describe_topics(list(self.names.values())).values()
            return all(
                len(topic.partitions) == partitions
                and all(p.leader is not None and len(p.isr) == len(p.replicas) for p in topic.partitions)
                for topic in descriptions
            )

        self.everywhere(there, f"{partitions} partitions of {self.names}")

    def settle_gone(self) -> None:
        self.everywhere(
            lambda admin: not set(self.names.values()) & set(admin.list_topics()), f"the end of {self.names}"
        )
