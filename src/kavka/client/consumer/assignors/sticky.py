"""[pure] Balanced assignments with as few moves as possible.

Members keep their partitions if possible. If two members claim a partition, the member with the
newer generation keeps it; if the generations are equal, neither keeps it. Each partition without an
owner is assigned to the subscriber with the fewest partitions. Then partitions move from larger to
smaller assignments until no move improves the balance. If members subscribe to different topics, a
chain of moves may be required: a partition moves from the first member to a second, and a partition
of another topic from the second to a third. The shortest chain is used.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Mapping
from struct import Struct
from struct import error as _StructError

from kavka.client.consumer.assignors import Assignment, Assignor, Subscription, members_in_order
from kavka.common.types import TopicPartition

_I16 = Struct(">h")
_I32 = Struct(">i")
NO_GENERATION = -1

Owned = dict[str, dict[str, set[int]]]
"""Partitions by member and topic."""


class StickyAssignor(Assignor):
    """Members revoke all partitions before they join, so they send their previous partitions as
    user data: an array of (topic, array of i32 partitions), then the generation (i32). Arrays have
    an i32 length, topic names an i16 length."""

    name = "sticky"

    def __init__(self) -> None:
        self._previous: tuple[TopicPartition, ...] = ()
        self._generation = NO_GENERATION

    def user_data(self, topics: frozenset[str]) -> bytes | None:
        if not self._previous and self._generation == NO_GENERATION:
            return None
        return write_user_data(self._previous, self._generation)

    def on_assignment(self, assignment: Assignment, generation: int) -> None:
        self._previous = assignment.partitions
        self._generation = generation

    def assign(
        self, partitions: Mapping[str, int], members: Mapping[str, Subscription]
    ) -> dict[str, list[TopicPartition]]:
        return assign_sticky(partitions, members, self.owned_by(members))

    def owned_by(self, members: Mapping[str, Subscription]) -> dict[str, tuple[tuple[TopicPartition, ...], int]]:
        """Return, for each member, its previous partitions and the generation of that
        assignment."""
        return {
            member: (subscription.owned, subscription.generation)
            if subscription.owned
            else read_user_data(subscription.user_data)
            for member, subscription in members.items()
        }


class CooperativeStickyAssignor(StickyAssignor):
    """Members keep their partitions while they rejoin. The first assignment omits the partitions
    that move. After their owners have revoked them, a second rebalance assigns them to the new
    owners. The user data is the generation (i32)."""

    name = "cooperative-sticky"
    cooperative = True

    def user_data(self, topics: frozenset[str]) -> bytes | None:
        return _I32.pack(self._generation)

    def owned_by(self, members: Mapping[str, Subscription]) -> dict[str, tuple[tuple[TopicPartition, ...], int]]:
        result = {}
        for member, subscription in members.items():
            generation, data = subscription.generation, subscription.user_data
            if generation < 0 and data is not None and len(data) >= 4:
                (generation,) = _I32.unpack_from(data)
            result[member] = subscription.owned, generation
        return result

    def assign(
        self, partitions: Mapping[str, int], members: Mapping[str, Subscription]
    ) -> dict[str, list[TopicPartition]]:
        targets = super().assign(partitions, members)
        owners: dict[TopicPartition, set[str]] = defaultdict(set)
        for member, subscription in members.items():
            for tp in subscription.owned:
                owners[tp].add(member)
        return {
            member: [tp for tp in target if not owners.get(tp) or owners[tp] == {member}]
            for member, target in targets.items()
        }


def write_user_data(owned: tuple[TopicPartition, ...], generation: int) -> bytes:
    topics: dict[str, list[int]] = {}
    for tp in sorted(owned):
        topics.setdefault(tp.topic, []).append(tp.partition)
    out = [_I32.pack(len(topics))]
    for topic, indexes in topics.items():
        name = topic.encode()
        out += [_I16.pack(len(name)), name, _I32.pack(len(indexes)), *map(_I32.pack, indexes)]
    out.append(_I32.pack(generation))
    return b"".join(out)


def read_user_data(data: bytes | None) -> tuple[tuple[TopicPartition, ...], int]:
    """Decode the result of `write_user_data`. Returns no partitions and NO_GENERATION if the data
    is invalid. The oldest version of the data has no generation."""
    if not data:
        return (), NO_GENERATION
    partitions: list[TopicPartition] = []
    try:
        (topics,) = _I32.unpack_from(data)
        pos = 4
        for _ in range(topics):
            (length,) = _I16.unpack_from(data, pos)
            if length < 0:
                return (), NO_GENERATION
            topic = data[pos + 2 : pos + 2 + length].decode()
            pos += 2 + length
            (count,) = _I32.unpack_from(data, pos)
            if count < 0 or count * 4 > len(data) - pos:
                return (), NO_GENERATION
            for index in range(count):
                partitions.append(TopicPartition(topic, _I32.unpack_from(data, pos + 4 + 4 * index)[0]))
            pos += 4 + 4 * count
        generation = _I32.unpack_from(data, pos)[0] if len(data) - pos >= 4 else NO_GENERATION
    except (ValueError, OverflowError, ArithmeticError, LookupError, _StructError):
        return (), NO_GENERATION
    return tuple(partitions), generation


def assign_sticky(
    partitions: Mapping[str, int],
    members: Mapping[str, Subscription],
    owned: Mapping[str, tuple[tuple[TopicPartition, ...], int]],
) -> dict[str, list[TopicPartition]]:
    shares = _Shares(partitions, members, members_in_order(members))
    for tp, member in _retained(partitions, members, owned).items():
        shares.assign(member, tp.topic, tp.partition)
    shares.assign_free()
    shares.balance()
    return {
        member: [TopicPartition(topic, p) for topic in sorted(owned) for p in sorted(owned[topic])]
        for member, owned in shares.owned.items()
    }


def _retained(
    partitions: Mapping[str, int],
    members: Mapping[str, Subscription],
    owned: Mapping[str, tuple[tuple[TopicPartition, ...], int]],
) -> dict[TopicPartition, str]:
    claims: dict[TopicPartition, tuple[int, str | None]] = {}
    for member in sorted(members):
        previous, generation = owned.get(member, ((), NO_GENERATION))
        for tp in previous:
            if tp.topic not in members[member].topics or not 0 <= tp.partition < partitions.get(tp.topic, 0):
                continue
            claim = claims.get(tp)
            if claim is None or generation > claim[0]:
                claims[tp] = generation, member
            elif generation == claim[0] and claim[1] != member:
                claims[tp] = generation, None
    return {tp: member for tp, (_, member) in claims.items() if member is not None}


class _Shares:
    """Owns the assignment while it is computed: the partitions of each member, and the unassigned
    (free) partitions."""

    def __init__(self, partitions: Mapping[str, int], members: Mapping[str, Subscription], order: list[str]) -> None:
        self.owned: Owned = {member: {} for member in order}
        self.count = dict.fromkeys(order, 0)
        self.rank = {member: index for index, member in enumerate(order)}
        self.free = {topic: set(range(count)) for topic, count in partitions.items()}
        self.subscribers = {topic: [m for m in order if topic in members[m].topics] for topic in partitions}
        self.topics = {member: sorted(members[member].topics & partitions.keys()) for member in order}

    def assign(self, member: str, topic: str, partition: int) -> None:
        self.owned[member].setdefault(topic, set()).add(partition)
        self.free[topic].discard(partition)
        self.count[member] += 1

    def move(self, topic: str, giver: str, taker: str) -> None:
        """Move the highest partition of the topic that `giver` owns, so that the result is
        deterministic."""
        owned = self.owned[giver][topic]
        partition = max(owned)
        owned.discard(partition)
        if not owned:
            del self.owned[giver][topic]
        self.count[giver] -= 1
        self.assign(taker, topic, partition)

    def assign_free(self) -> None:
        """Assign the free partitions. Topics with few subscribers are first, since fewer members
        can own their partitions."""
        for topic in sorted(self.free, key=lambda t: (len(self.subscribers[t]), t)):
            subscribers = self.subscribers[topic]
            if not subscribers:
                continue
            for partition in sorted(self.free[topic]):
                self.assign(min(subscribers, key=self._load), topic, partition)

    def balance(self) -> None:
        """Move partitions until the assignment is balanced. Every round moves a partition from a
        member to a member with at least two partitions fewer, so the loop terminates."""
        balanced: set[str] = set()
        while True:
            takers = [member for member in self.count if member not in balanced]
            if not takers:
                return
            taker = min(takers, key=self._load)
            if max(self.count.values()) < self.count[taker] + 2:
                return
            moves = self._moves_to(taker)
            if moves is None:
                balanced.add(taker)
                continue
            balanced.clear()
            for topic, giver, receiver in moves:
                self.move(topic, giver, receiver)

    def _moves_to(self, taker: str) -> list[tuple[str, str, str]] | None:
        """Return the moves (topic, giver, receiver) that take a partition from the member with the
        most partitions and add one to `taker`. Returns None if no reachable member has at least two
        partitions more than `taker`."""
        previous: dict[str, tuple[str, str]] = {taker: ("", "")}
        queue = deque([taker])
        best: str | None = None
        visited_topics: set[str] = set()
        while queue:
            member = queue.popleft()
            for topic in self.topics[member]:
                if topic in visited_topics:
                    continue
                visited_topics.add(topic)
                for other in self.subscribers[topic]:
                    if other not in previous and topic in self.owned[other]:
                        previous[other] = topic, member
                        queue.append(other)
                        has_more = self.count[other] >= self.count[taker] + 2
                        if has_more and (best is None or self.count[other] > self.count[best]):
                            best = other
        if best is None:
            return None
        moves: list[tuple[str, str, str]] = []
        giver = best
        while giver != taker:
            topic, receiver = previous[giver]
            moves.append((topic, giver, receiver))
            giver = receiver
        return moves

    def _load(self, member: str) -> tuple[int, int]:
        return self.count[member], self.rank[member]
