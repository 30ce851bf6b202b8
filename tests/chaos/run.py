"""Run rounds of load, a fault, recovery and checks. Each round prints one line of a table."""

from __future__ import annotations

import hashlib
import random
import subprocess
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from tests.chaos import replicas, transactions
from tests.chaos.checker import MAX_LISTED, Read, check, check_group
from tests.chaos.cluster import BROKERS, PARTITIONS, TOPIC, Cluster
from tests.chaos.faults import Fault, Scene
from tests.chaos.history import History, Violation
from tests.chaos.load import Load
from tests.support.apache import LAST_WITH_ZOOKEEPER
from tests.support.java_client import tool_command
from tests.support.processes import wait_until

AVAILABLE_AGAIN_S = 10.0
# A client may be in a backoff when the cluster has recovered, but not for longer than this.
CLIENT_BACK_S = 20.0
IN_SYNC_S = 90.0
TRANSACTION_EVERY_S = 0.2
SETTLED_S = 60.0

COLUMNS = (
    ("round", 5),
    ("fault", 24),
    ("on", 16),
    ("no ack", 7),
    ("slowest client", 14),
    ("no read", 7),
    ("in sync", 7),
    ("stall", 5),
    ("acked", 8),
    ("transactions", 12),
    ("", 0),
)


@dataclass
class Outcome:
    """The result of one round."""

    number: int
    fault: str
    victim: str = "?"
    # The longest time in which no client got an acknowledgement in a partition.
    no_ack: float = 0.0
    # The longest time in which one client got no acknowledgement in a partition.
    slowest: float = 0.0
    slowest_client: str = ""
    no_read: float = 0.0
    in_sync: float = 0.0
    stall: float = 0.0
    acked: int = 0
    resent: int = 0
    # Committed + aborted + in doubt, in all rounds so far.
    transactions: str = ""
    violations: list[Violation] = field(default_factory=list)

    def line(self) -> str:
        verdict = f"ok, {self.resent} resent by librdkafka" if self.resent else "ok"
        if self.violations:
            verdict = "VIOLATED: " + ", ".join(sorted({violation.kind for violation in self.violations}))
        no_ack, slowest, *other_times = (
            f"{value:.1f} s" for value in (self.no_ack, self.slowest, self.no_read, self.in_sync, self.stall)
        )
        cells = [str(self.number), self.fault, self.victim, no_ack, f"{slowest} {self.slowest_client}", *other_times]
        cells += [str(self.acked), self.transactions, verdict]
        return "  ".join(cell.ljust(width) for cell, (_, width) in zip(cells, COLUMNS, strict=True)).rstrip()


def heading() -> str:
    return "  ".join(name.ljust(width) for name, width in COLUMNS).rstrip()


class Pulse(threading.Thread):
    """Measures stalls of this process, which are not faults of the cluster."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self._worst = 0.0
        self._ended = threading.Event()
        self.start()

    def run(self) -> None:
        last = time.monotonic()
        while not self._ended.wait(0.05):
            now = time.monotonic()
            self._worst = max(self._worst, now - last - 0.05)
            last = now

    def worst(self) -> float:
        """Return the longest stall since the last call."""
        worst, self._worst = self._worst, 0.0
        return worst

    def end(self) -> None:
        self._ended.set()


class Run:
    """One cluster with one history: any number of rounds, and a final read of all records."""

    def __init__(self, folder: Path, faults: Sequence[Fault], *, apache: bool, seed: int, say: Callable[[str], None]):
        self.folder = folder
        self.random = random.Random(seed)
        self.say = say
        self.outcomes: list[Outcome] = []
        self.history = History(PARTITIONS)
        self._logs: dict[int, tuple[int, bytes, list[Read]]] = {}
        self.cluster = Cluster(
            folder,
            apache=apache,
            network=any(fault.kind.network for fault in faults),
            small_disks=any(fault.kind.small_disks for fault in faults),
        )
        self._pulse = Pulse()
        self.load = Load(self.history, TOPIC, self.cluster.bootstrap)
        self.transactions = transactions.Outcomes()
        self._transaction_senders: list[transactions.TransactionSender] = [
            kind(name, self.transactions, self.cluster.bootstrap, TRANSACTION_EVERY_S)
            for kind, name in (
                (transactions.OurTransactions, "ours-tx"),
                (transactions.RdkafkaTransactions, "rdkafka-tx"),
            )
        ]

    def begin(self) -> None:
        self.cluster.create_topic()
        self.cluster.create_topic(transactions.TOPIC, transactions.PARTITIONS)
        self.load.start()
        for sender in self._transaction_senders:
            sender.start()
        wait_until(self._flowing, timeout=60, what="records acknowledged and read in every partition")

    def _flowing(self) -> bool:
        if self._dead():
            raise RuntimeError(f"a client has ended: {self._dead()}")
        acked = {partition for partition, _ in self.history.acked}
        producing = {transaction.producer for transaction in self.transactions.committed}
        return len(acked) == PARTITIONS and all(self.history.group_read.values()) and len(producing) == 2

    def round(self, fault: Fault) -> Outcome:
        """Run a fault, the recovery and the checks. The outcome has all violations."""
        outcome = Outcome(len(self.outcomes) + 1, fault.name)
        self.outcomes.append(outcome)
        scene = Scene(self.cluster, self.random)
        try:
            self._round(fault, scene, outcome)
        except (TimeoutError, RuntimeError, AssertionError) as error:
            outcome.violations.append(Violation("stuck", f"{type(error).__name__}: {error}"))
            outcome.violations += [Violation("client", f"{text} has ended") for text in self._dead()]
            outcome.violations += self._check_leader_files()
        outcome.victim = scene.victim
        outcome.stall = max(outcome.stall, self._pulse.worst())
        outcome.acked = self.history.acks
        outcome.resent = len(self.history.resent)
        counts = self.transactions
        outcome.transactions = f"{len(counts.committed)}+{len(counts.aborted)}+{len(counts.in_doubt)}"
        self.say(outcome.line())
        for violation in outcome.violations:
            self.say(f"       {violation}")
        return outcome

    def _round(self, fault: Fault, scene: Scene, outcome: Outcome) -> None:
        self.cluster.elect_preferred()
        self.cluster.wait_in_sync(IN_SYNC_S)
        time.sleep(1)
        self._pulse.worst()
        scene.begin()
        fault.run(scene)
        self._all_alive(outcome)
        outcome.in_sync = self.cluster.wait_in_sync(IN_SYNC_S)
        time.sleep(2)
        now = time.monotonic()
        outcome.no_ack, partition = self.history.longest_wait(scene.since, now)
        outcome.slowest, outcome.slowest_client, slowest_partition = self.history.longest_wait_of_producer(
            scene.since, now
        )
        outcome.no_read = self.history.longest_read_wait(scene.since, now)
        outcome.stall = self._pulse.worst()
        if outcome.no_ack - outcome.stall > AVAILABLE_AGAIN_S:
            text = f"partition {partition} had no acknowledgement for {outcome.no_ack:.1f} s"
            outcome.violations.append(Violation("unavailable", text))
        if outcome.slowest - outcome.stall > CLIENT_BACK_S:
            text = (
                f"{outcome.slowest_client} had no acknowledgement in partition {slowest_partition} "
                f"for {outcome.slowest:.1f} s"
            )
            outcome.violations.append(Violation("client", text))
        outcome.violations += self.check()

    def _all_alive(self, outcome: Outcome) -> None:
        for number in sorted(set(BROKERS) - set(self.cluster.alive())):
            code = self.cluster.brokers[number].process.returncode
            outcome.violations.append(Violation("died", f"broker {number} ended with {code}"))
        if outcome.violations or self._dead():
            raise RuntimeError("a broker or a client has ended")

    def _dead(self) -> list[str]:
        dead = [f"{sender.name}: {sender.error!r}" for sender in self._transaction_senders if sender.error is not None]
        return self.load.dead() + dead

    # --- checks

    def check(self) -> list[Violation]:
        """Pause the load, and check the files of all replicas, the ISRs and the group. Called when
        no fault is in progress."""
        with self._quiet():
            self.cluster.wait_in_sync(IN_SYNC_S)
            violations = self._wait_same_replicas()
            violations += [Violation("metadata", text) for text in self._wait_same_metadata()]
            self._wait_for_group()
            violations += check(self.history, {partition: log[2] for partition, log in self._logs.items()})
            violations += check_group(self.history, self._ends())
            violations += self._check_transactions()
            violations += [
                Violation("failed", f"{record} of partition {partition} was not delivered: {error}")
                for partition, record, error in self.history.failed[:MAX_LISTED]
            ]
        return violations

    def _check_leader_files(self) -> list[Violation]:
        """Check only the files of the leaders, after a round that did not recover."""
        self.load.pause()
        # Records that are acknowledged while the files are read would be counted as lost.
        time.sleep(10)
        try:
            self._compare(TOPIC)
        except Exception as error:
            return [Violation("stuck", f"the files cannot be read: {error!r}")]
        return check(self.history, {partition: log[2] for partition, log in self._logs.items()})

    @contextmanager
    def _quiet(self) -> Iterator[None]:
        self.load.pause()
        for sender in self._transaction_senders:
            sender.pause()
        try:
            try:
                wait_until(self._settled, timeout=SETTLED_S, what="responses to all records")
            except TimeoutError as error:
                busy = [sender.name for sender in self._transaction_senders if not sender.idle.is_set()]
                raise TimeoutError(f"{error}: outstanding {self.load.outstanding}, in transactions {busy}")
            yield
        finally:
            self.load.resume()
            for sender in self._transaction_senders:
                sender.resume()

    def _settled(self) -> bool:
        return self.load.is_settled and all(sender.idle.is_set() for sender in self._transaction_senders)

    def _wait_same_replicas(self) -> list[Violation]:
        """Wait until all replicas are equal, because followers may lag by one fetch. Return the
        differences that remain."""
        deadline = time.monotonic() + 15
        while True:
            violations: list[Violation] = []
            for topic in self.cluster.topics():
                violations += self._compare(topic)
            if not violations or time.monotonic() > deadline:
                return violations
            time.sleep(0.5)

    def _compare(self, topic: str) -> list[Violation]:
        folders = {
            number: replicas.partition_folders(broker.log_dirs, topic)
            for number, broker in self.cluster.brokers.items()
        }
        violations: list[Violation] = []
        for partition in self.cluster.partitions(topic):
            logs = {
                number: replicas.log_bytes(by_partition[partition])
                for number, by_partition in folders.items()
                if partition in by_partition
            }
            if len(logs) < len(BROKERS):
                violations.append(Violation("replicas", f"{topic}-{partition} is only on brokers {sorted(logs)}"))
            violations += replicas.compare(f"{topic}-{partition}", logs)
            if topic == TOPIC:
                self._read_log(partition, logs[self.cluster.leaders()[partition]])
        return violations

    def _check_transactions(self) -> list[Violation]:
        """Check the files of the leaders. The coordinator must abort transactions that a producer
        left open."""
        deadline = time.monotonic() + transactions.TIMEOUT_MS / 1000 + 20
        while True:
            final, open_transactions = self._committed()
            if not open_transactions or time.monotonic() > deadline:
                break
            time.sleep(0.5)
        violations = [Violation("open", text) for text in open_transactions[:MAX_LISTED]]
        return violations + transactions.check(self.transactions, final)

    def _committed(self) -> tuple[dict[int, list[Read]], list[str]]:
        final: dict[int, list[Read]] = {}
        open_transactions: list[str] = []
        for partition, leader in self.cluster.leaders(transactions.TOPIC).items():
            folders = replicas.partition_folders(self.cluster.brokers[leader].log_dirs, transactions.TOPIC)
            final[partition], texts = transactions.committed_records(replicas.log_bytes(folders[partition]))
            open_transactions += [f"a transaction in {transactions.TOPIC}-{partition}: {text}" for text in texts]
        return final, open_transactions

    def _read_log(self, partition: int, log: bytes) -> None:
        """Read the records that were appended since the last call, or all records if the earlier
        part of the log has changed."""
        size, digest, records = self._logs.get(partition, (0, hashlib.sha256().digest(), []))
        resent_offsets = replicas.resent(log, records[-1000][0] if len(records) > 1000 else 0)
        self.history.resent |= {(partition, offset) for offset in resent_offsets}
        if hashlib.sha256(log[:size]).digest() != digest:
            size, records = 0, []
        records = records + replicas.records(log[size:])
        self._logs[partition] = (len(log), hashlib.sha256(log).digest(), records)

    def _wait_same_metadata(self) -> list[str]:
        deadline = time.monotonic() + 15
        while True:
            disagreements = self.cluster.metadata_disagreements()
            if not disagreements or time.monotonic() > deadline:
                return disagreements
            time.sleep(0.5)

    def _ends(self) -> dict[int, int]:
        return {partition: log[2][-1][0] + 1 if log[2] else 0 for partition, log in self._logs.items()}

    def _wait_for_group(self) -> None:
        """Wait until the group has committed the ends of all partitions."""
        ends = self._ends()
        try:
            wait_until(lambda: self.history.committed == ends, timeout=SETTLED_S, what="the group at the ends")
        except TimeoutError as error:
            readers = "; ".join(map(str, self.load.readers))
            raise TimeoutError(
                f"{error}: committed {self.history.committed}, read {self.history.read_up_to()}, ends {ends}; {readers}"
            )

    def last_read(self) -> list[Violation]:
        """Read both topics with Apache's console consumer, and check the records."""
        with self._quiet():
            self._wait_same_replicas()
            final = read_with_apache(self.cluster.bootstrap, TOPIC, sum(self._ends().values()))
            violations = check(self.history, final)
            count = sum(map(len, self._committed()[0].values()))
            committed = read_with_apache(self.cluster.bootstrap, transactions.TOPIC, count)
            return violations + transactions.check(self.transactions, committed)

    def end(self) -> None:
        for sender in self._transaction_senders:
            sender.end()
        self.load.pause()
        self.load.end()
        for sender in self._transaction_senders:
            if sender.is_alive():
                sender.join(60)
        self._pulse.end()
        self.cluster.close()

    @property
    def violations(self) -> list[Violation]:
        return [violation for outcome in self.outcomes for violation in outcome.violations]

    def tracebacks(self) -> Counter[str]:
        """Count the tracebacks in the brokers' logs, by their last line."""
        counts: Counter[str] = Counter()
        for path in sorted(self.folder.glob("broker-*/kavka.out")):
            pieces = path.read_text(errors="replace").split("Traceback (most recent call last):\n")[1:]
            for piece in pieces:
                counts[next((line for line in piece.splitlines() if not line.startswith(" ")), "")] += 1
        return counts


def read_with_apache(bootstrap: str, topic: str, count: int) -> Mapping[int, list[Read]]:
    """Read `count` records from the start of the topic with Apache's console consumer."""
    argv = tool_command(
        LAST_WITH_ZOOKEEPER,
        "console-consumer",
        *("--bootstrap-server", bootstrap, "--topic", topic, "--from-beginning", "--timeout-ms", "20000"),
        *("--property", "print.partition=true", "--property", "print.offset=true", "--property", "key.separator=\t"),
        *("--isolation-level", "read_committed", "--max-messages", str(count)),
    )
    result = subprocess.run(argv, capture_output=True, timeout=600, check=False)
    if result.returncode != 0:
        raise RuntimeError(f"the console consumer ended with {result.returncode}: {result.stderr[-2000:]!r}")
    final: dict[int, list[Read]] = {}
    for line in result.stdout.splitlines():
        partition, offset, value = line.split(b"\t", 2)
        final.setdefault(int(partition.removeprefix(b"Partition:")), []).append(
            (int(offset.removeprefix(b"Offset:")), value)
        )
    return final


def run(
    faults: Sequence[Fault],
    *,
    rounds: int,
    duration: float,
    apache: bool,
    seed: int,
    folder: Path | None = None,
    keep: bool = False,
    say: Callable[[str], None] = print,
) -> list[Outcome]:
    """Run `rounds` of every fault in turn, until there is a violation. No round starts after
    `duration` seconds."""
    if folder is not None:
        folder.mkdir(parents=True, exist_ok=True)
    root = Path(tempfile.mkdtemp(prefix="kavka-chaos-", dir=folder))
    say(f"{'Apache Kafka' if apache else 'Kavka'}, seed {seed}, {root}")
    say(heading())
    running: Run | None = None
    has_passed = False
    try:
        running = Run(root, faults, apache=apache, seed=seed, say=say)
        running.begin()
        start = time.monotonic()
        for number in range(rounds * len(faults)):
            if duration and time.monotonic() - start > duration:
                break
            if running.round(faults[number % len(faults)]).violations:
                break
        if not running.violations:
            last = Outcome(len(running.outcomes) + 1, "last read (Apache)", "", violations=running.last_read())
            last.acked = running.history.acks
            running.outcomes.append(last)
            say(last.line())
            for violation in last.violations:
                say(f"       {violation}")
        has_passed = not running.violations
        return running.outcomes
    finally:
        if running is not None:
            running.end()
            for error, count in running.tracebacks().items():
                say(f"{count} tracebacks in the brokers' logs: {error}")
            running.cluster.remove(keep=keep or not has_passed)
        if keep or not has_passed:
            say(f"the files are in {root}")
