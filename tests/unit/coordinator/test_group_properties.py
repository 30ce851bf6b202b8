"""Properties of classic groups under random client requests and coordinator restarts: no partition
has two owners in one generation, no committed offset is lost, and every request gets a response."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from kavka.common.errors import ErrorCode
from kavka.coordinator.group import records
from kavka.coordinator.group.state import COMPLETING, EMPTY, PREPARING, STABLE, ClassicGroup
from kavka.coordinator.operations import Outcome
from tests.unit.coordinator.harness import GROUP, REBALANCE, SESSION, Harness, PendingResponse, subscription

PARTITIONS = 7
ASSIGNORS = ("range", "roundrobin", "sticky")
CLIENTS = 4

client_numbers = st.integers(0, CLIENTS - 1)
client_orders = st.permutations(range(CLIENTS))


class Client:
    """The state of a consumer. Partitions belong to its `identity`: a static member keeps them when
    its member id changes."""

    def __init__(self, number: int, instance_id: str | None) -> None:
        self.number = number
        self.instance_id = instance_id
        self.member_id = ""
        self.generation = -1
        self.protocol: tuple[str | None, str | None] = (None, None)
        self.joined: Any = None
        self.synced_in = -1
        self.joining: PendingResponse | None = None
        self.syncing: PendingResponse | None = None

    @property
    def is_pending(self) -> bool:
        return any(pending is not None and pending.is_pending for pending in (self.joining, self.syncing))

    @property
    def identity(self) -> str:
        return self.instance_id or self.member_id

    def forget(self) -> None:
        self.member_id, self.generation, self.joined = "", -1, None


class Groups(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.harness = Harness()
        self.clients: list[Client] = []
        # Clients that send no more requests. Their pending requests may still get responses.
        self.dead: list[Client] = []
        self.owners: dict[tuple[int, int], str] = {}  # generation and partition -> identity
        # Offset commits in log order: partition, offset, position of the record in the log.
        self.commits: list[tuple[int, int, int]] = []
        self.attempt = 0

    # ---- clients

    @initialize(statics=st.lists(st.booleans(), min_size=CLIENTS, max_size=CLIENTS))
    def start(self, statics: list[bool]) -> None:
        self.clients = [
            Client(number, f"instance-{number}" if is_static else None) for number, is_static in enumerate(statics)
        ]

    @rule(number=client_numbers)
    def act(self, number: int) -> None:
        """Send the next request of a consumer."""
        client = self.clients[number]
        if client.is_pending:
            return
        if client.joined is not None and client.synced_in != client.generation:
            self.sync(number)
        elif client.generation < 0 or self.beat(client) is not ErrorCode.NONE:
            self.join(number, 9, "t", ASSIGNORS[:2])

    @rule(numbers=client_orders)
    def all_act(self, numbers: list[int]) -> None:
        for number in numbers:
            self.act(number)

    @rule(numbers=client_orders)
    def all_act_for_several_rounds(self, numbers: list[int]) -> None:
        for _ in range(4):
            self.all_act(numbers)
            self.all_act(numbers)
            self.time_passes(3_000)

    @rule(
        number=client_numbers,
        version=st.sampled_from((3, 5, 8, 9)),
        topics=st.sampled_from(("t", "tu")),
        assignors=st.sampled_from(((), ("roundrobin",), ("sticky",), ("roundrobin", "sticky"))),
    )
    def join(self, number: int, version: int, topics: str, assignors: tuple[str, ...]) -> None:
        client = self.clients[number]
        if client.is_pending or (client.instance_id is not None and version < 5):
            return
        client.joining = self.harness.join(
            client.member_id,
            version=version,
            instance_id=client.instance_id,
            protocols=tuple(
                (name, subscription(*topics)) for name in ASSIGNORS if name == "range" or name in assignors
            ),
            client=f"c{client.number}",
        )
        self.apply_responses()

    @rule(number=client_numbers)
    def sync(self, number: int) -> None:
        client = self.clients[number]
        if client.joined is None or client.is_pending:
            return
        joined = client.joined
        assignments: dict[str, bytes] = {}
        if joined.leader == client.member_id and not joined.skip_assignment:
            ids = [member.member_id for member in joined.members]
            for index, member_id in enumerate(ids):
                assignments[member_id] = json.dumps(list(range(index, PARTITIONS, len(ids)))).encode()
        client.syncing = self.harness.sync(
            client.member_id,
            client.generation,
            assignments,
            instance_id=client.instance_id,
            protocol=client.protocol,
        )
        self.apply_responses()

    @rule(number=client_numbers)
    def sync_that_cannot_be_written(self, number: int) -> None:
        self.harness.failure = ErrorCode.NOT_COORDINATOR
        self.sync(number)
        self.harness.failure = None
        self.apply_responses()

    def beat(self, client: Client) -> ErrorCode:
        code = self.harness.heartbeat(client.member_id, client.generation, client.instance_id)
        if code in (ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.FENCED_INSTANCE_ID):
            client.forget()
        return code

    @rule(number=client_numbers)
    def leave(self, number: int) -> None:
        client = self.clients[number]
        if client.member_id:
            self.harness.leave((client.member_id, client.instance_id))
            client.forget()
            self.apply_responses()

    @rule(number=client_numbers, partition=st.integers(0, PARTITIONS - 1), fails=st.booleans())
    def commit(self, number: int, partition: int, fails: bool) -> None:
        client = self.clients[number]
        self.attempt += 1
        if fails:
            self.harness.failure = ErrorCode.COORDINATOR_NOT_AVAILABLE
        position = len(self.harness.log)
        codes = self.harness.commit(
            {("t", partition): self.attempt},
            member_id=client.member_id,
            generation=client.generation,
            instance_id=client.instance_id,
        )
        self.harness.failure = None
        if codes[("t", partition)] is ErrorCode.NONE:
            self.commits.append((partition, self.attempt, position))

    @rule(number=client_numbers, is_zombie=st.booleans())
    def replace_client(self, number: int, is_zombie: bool) -> None:
        """Replace a client with a new process. With `is_zombie` the old client continues, and the
        new client sends only one request."""
        client = self.clients[number]
        self.dead.append(client)
        self.clients[number] = Client(number, client.instance_id)
        if is_zombie:
            self.act(number)
            self.clients[number], self.dead[-1] = client, self.clients[number]

    # ---- the coordinator

    @rule(ms=st.sampled_from((1, 100, 3_000, SESSION - 1, SESSION, REBALANCE)))
    def time_passes(self, ms: int) -> None:
        self.harness.advance(ms)
        self.apply_responses()

    @rule()
    def replicas_fall_behind(self) -> None:
        self.harness.hold = True

    @rule()
    def replicas_catch_up(self) -> None:
        self.harness.release()
        self.apply_responses()

    @rule(loses_uncommitted=st.booleans())
    def restart(self, loses_uncommitted: bool) -> None:
        """Another coordinator takes over. It may lose the records that are not committed."""
        if loses_uncommitted and self.harness.held:
            first = self.harness.held[0]
            first_lost = next(
                position
                for position in range(len(self.harness.log))
                if self.harness.log[position] == _encoded(first) and position >= self._committed_end()
            )
            del self.harness.log[first_lost:]
            self.commits = [commit for commit in self.commits if commit[2] < first_lost]
        self.harness.held = []
        self.harness.hold = False
        for client in self.clients + self.dead:
            # The connection is closed and the response is lost. The client retries.
            client.joining = client.syncing = None
        self.harness.restart()

    def _committed_end(self) -> int:
        return len(self.harness.log) - sum(len(outcome.records) for outcome in self.harness.held)

    # ---- responses

    def apply_responses(self) -> None:
        for client in self.clients + self.dead:
            if client.joining is not None and not client.joining.is_pending:
                self._joined(client, client.joining)
                client.joining = None
            if client.syncing is not None and not client.syncing.is_pending:
                self._synced(client, client.syncing)
                client.syncing = None

    def _joined(self, client: Client, pending: PendingResponse) -> None:
        response = pending.response
        if pending.code is ErrorCode.MEMBER_ID_REQUIRED:
            client.member_id = response.member_id
        elif pending.code is ErrorCode.NONE:
            client.member_id = response.member_id
            client.generation = response.generation_id
            client.protocol = (response.protocol_type, response.protocol_name)
            client.joined = response
        elif pending.code in (ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.FENCED_INSTANCE_ID):
            client.forget()

    def _synced(self, client: Client, pending: PendingResponse) -> None:
        if pending.code is not ErrorCode.NONE:
            if pending.code in (ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.FENCED_INSTANCE_ID):
                client.forget()
            return
        client.synced_in = client.generation
        for partition in json.loads(pending.response.assignment or b"[]"):
            owner = self.owners.setdefault((client.generation, partition), client.identity)
            assert owner == client.identity, f"partition {partition} of generation {client.generation} has two owners"

    # ---- invariants

    @invariant()
    def offsets_are_the_last_commits(self) -> None:
        expected: dict[int, int] = {}
        for partition, offset, _ in self.commits:
            expected[partition] = offset
        for partition in range(PARTITIONS):
            assert self.harness.offset("t", partition) == expected.get(partition)

    @invariant()
    def the_group_is_consistent(self) -> None:
        group = self.harness.shard.groups.get(GROUP)
        if group is None:
            return
        assert isinstance(group, ClassicGroup)
        members = group.members
        assert all(key == member.member_id for key, member in members.items())
        assert group.awaiting_join_count == sum(m.awaiting_join is not None for m in members.values())
        assert group.static_members == {m.instance_id: m.member_id for m in members.values() if m.instance_id}
        assert not members or group.leader_id in members
        assert group.pending_sync <= members.keys()
        if group.state is EMPTY:
            assert not members
        if group.state in (STABLE, COMPLETING):
            assert members
            assert group.protocol in group.candidates()
        for member in members.values():
            assert group.state in (PREPARING, STABLE) or member.awaiting_join is None
            assert group.state is COMPLETING or member.awaiting_sync is None
            assert ("session", GROUP, member.member_id) in self.harness.timers.timers

    def teardown(self) -> None:
        """Check that every request gets a response, and that the group becomes empty when all
        clients are silent."""
        self.harness.release()
        self.harness.advance(5 * REBALANCE + 300_000)
        for client in self.clients + self.dead:
            assert client.joining is None or not client.joining.is_pending
            assert client.syncing is None or not client.syncing.is_pending
        group = self.harness.shard.groups.get(GROUP)
        assert group is None or group.state is EMPTY
        assert self.harness.timers.timers == {}


def _encoded(outcome: Outcome) -> tuple[bytes, bytes | None]:
    return records.encode(outcome.records[0])


TestGroups = Groups.TestCase
TestGroups.settings = settings(
    max_examples=150, stateful_step_count=50, deadline=None, suppress_health_check=list(HealthCheck)
)
