"""[pure] Even shares, and as few moves as that takes.

What members had they keep, as far as they still may: where two say that they have a partition, the one of the newer
generation has it, and of the same generation neither. What nobody has goes to the subscriber with the smallest share.
Then partitions move from larger to smaller shares until that makes them no more even. Where members read different
topics a move may take several steps: one gives a partition to a second, which gives one of another topic to a third;
the shortest such way is taken.
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

Held = dict[str, dict[str, set[int]]]
"""By member and topic, the partitions it has."""


class StickyAssignor(Assignor):
    """Members give up everything before they join, so what they had they tell in their user data: an array of topic and
    partitions, then the generation (i32), in the plain encoding with lengths of 2 and 4 bytes."""

    name = "sticky"

    def __init__(self) -> None:
        self._had: tuple[TopicPartition, ...] = ()
        self._generation = NO_GENERATION

    def user_data(self, topics: frozenset[str]) -> bytes | None:
        if not self._had and self._generation == NO_GENERATION:
            return None
        return write_user_data(self._had, self._generation)

    def on_assignment(self, assignment: Assignment, generation: int) -> None:
        self._had = assignment.partitions
        self._generation = generation

    def assign(
        self, partitions: Mapping[str, int], members: Mapping[str, Subscription]
    ) -> dict[str, list[TopicPartition]]:
        return assign_sticky(partitions, members, self.owned_by(members))

    def owned_by(self, members: Mapping[str, Subscription]) -> dict[str, tuple[tuple[TopicPartition, ...], int]]:
        """By member what it says that it had, and in which generation."""
        return {
            member: (one.owned, one.generation) if one.owned else read_user_data(one.user_data)
            for member, one in members.items()
        }


class CooperativeStickyAssignor(StickyAssignor):
    """Members keep what they have: what moves is left out of the first assignment, and given to its new owner in the
    second, which follows when the old one has given it up. Their user data is the generation alone (i32)."""

    name = "cooperative-sticky"
    cooperative = True

    def user_data(self, topics: frozenset[str]) -> bytes | None:
        return _I32.pack(self._generation)

    def owned_by(self, members: Mapping[str, Subscription]) -> dict[str, tuple[tuple[TopicPartition, ...], int]]:
        result = {}
        for member, one in members.items():
            generation = one.generation
            if generation < 0 and one.user_data is not None and len(one.user_data) >= 4:
                (generation,) = _I32.unpack_from(one.user_data)
            result[member] = one.owned, generation
        return result

    def assign(
        self, partitions: Mapping[str, int], members: Mapping[str, Subscription]
    ) -> dict[str, list[TopicPartition]]:
        found = super().assign(partitions, members)
        owners: dict[TopicPartition, set[str]] = defaultdict(set)
        for member, one in members.items():
            for tp in one.owned:
                owners[tp].add(member)
        return {
            member: [tp for tp in given if not owners.get(tp) or owners[tp] == {member}]
            for member, given in found.items()
        }


def write_user_data(had: tuple[TopicPartition, ...], generation: int) -> bytes:
    topics: dict[str, list[int]] = {}
    for tp in sorted(had):
        topics.setdefault(tp.topic, []).append(tp.partition)
    out = [_I32.pack(len(topics))]
    for topic, indexes in topics.items():
        name = topic.encode()
        out += [_I16.pack(len(name)), name, _I32.pack(len(indexes)), *map(_I32.pack, indexes)]
    out.append(_I32.pack(generation))
    return b"".join(out)


def read_user_data(data: bytes | None) -> tuple[tuple[TopicPartition, ...], int]:
    """Nothing, of no generation, where it is not what `write_user_data` writes. The oldest version has no
    generation."""
    if not data:
        return (), NO_GENERATION
    found: list[TopicPartition] = []
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
                found.append(TopicPartition(topic, _I32.unpack_from(data, pos + 4 + 4 * index)[0]))
            pos += 4 + 4 * count
        generation = _I32.unpack_from(data, pos)[0] if len(data) - pos >= 4 else NO_GENERATION
    except (ValueError, OverflowError, ArithmeticError, LookupError, _StructError):
        return (), NO_GENERATION
    return tuple(found), generation


def assign_sticky(
    partitions: Mapping[str, int],
    members: Mapping[str, Subscription],
    owned: Mapping[str, tuple[tuple[TopicPartition, ...], int]],
) -> dict[str, list[TopicPartition]]:
    order = members_in_order(members)
    shares = _Shares(partitions, members, order)
    for tp, member in _kept(partitions, members, owned).items():
        shares.give(member, tp.topic, tp.partition)
    shares.deal_the_rest()
    shares.level()
    return {
        member: [TopicPartition(topic, p) for topic in sorted(held) for p in sorted(held[topic])]
        for member, held in shares.held.items()
    }


def _kept(
    partitions: Mapping[str, int],
    members: Mapping[str, Subscription],
    owned: Mapping[str, tuple[tuple[TopicPartition, ...], int]],
) -> dict[TopicPartition, str]:
    claims: dict[TopicPartition, tuple[int, str | None]] = {}
    for member in sorted(members):
        had, generation = owned.get(member, ((), NO_GENERATION))
        for tp in had:
            if tp.topic not in members[member].topics or not 0 <= tp.partition < partitions.get(tp.topic, 0):
                continue
            known = claims.get(tp)
            if known is None or generation > known[0]:
                claims[tp] = generation, member
            elif generation == known[0] and known[1] != member:
                claims[tp] = generation, None
    return {tp: member for tp, (_, member) in claims.items() if member is not None}


class _Shares:
    """What each member has so far."""

    def __init__(self, partitions: Mapping[str, int], members: Mapping[str, Subscription], order: list[str]) -> None:
        self.held: Held = {member: {} for member in order}
        self.count = dict.fromkeys(order, 0)
        self.place = {member: index for index, member in enumerate(order)}
        self.free = {topic: set(range(count)) for topic, count in partitions.items()}
        self.readers = {topic: [m for m in order if topic in members[m].topics] for topic in partitions}
        self.topics = {member: sorted(members[member].topics & partitions.keys()) for member in order}

    def give(self, member: str, topic: str, partition: int) -> None:
        self.held[member].setdefault(topic, set()).add(partition)
        self.free[topic].discard(partition)
        self.count[member] += 1

    def move(self, topic: str, giver: str, taker: str) -> None:
        """The partition that goes is the last, so that what stays is the same for everybody who works it out."""
        had = self.held[giver][topic]
        partition = max(had)
        had.discard(partition)
        if not had:
            del self.held[giver][topic]
        self.count[giver] -= 1
        self.give(taker, topic, partition)

    def deal_the_rest(self) -> None:
        """Topics with few readers first: the others have more of a choice."""
        for topic in sorted(self.free, key=lambda t: (len(self.readers[t]), t)):
            readers = self.readers[topic]
            if not readers:
                continue
            for partition in sorted(self.free[topic]):
                self.give(min(readers, key=self._load), topic, partition)

    def level(self) -> None:
        """Every round takes one from a larger share to one smaller by two or more, so it ends."""
        settled: set[str] = set()
        while True:
            takers = [member for member in self.count if member not in settled]
            if not takers:
                return
            taker = min(takers, key=self._load)
            if max(self.count.values()) < self.count[taker] + 2:
                return
            way = self._way_to(taker)
            if way is None:
                settled.add(taker)
                continue
            settled.clear()
            for topic, giver, to in way:
                self.move(topic, giver, to)

    def _way_to(self, taker: str) -> list[tuple[str, str, str]] | None:
        """The moves that bring `taker` one from the largest share that has two more than it; None where there is
        none."""
        came: dict[str, tuple[str, str]] = {taker: ("", "")}
        queue = deque([taker])
        best: str | None = None
        seen: set[str] = set()
        while queue:
            member = queue.popleft()
            for topic in self.topics[member]:
                if topic in seen:
                    continue
                seen.add(topic)
                for other in self.readers[topic]:
                    if other not in came and topic in self.held[other]:
                        came[other] = topic, member
                        queue.append(other)
                        enough = self.count[other] >= self.count[taker] + 2
                        if enough and (best is None or self.count[other] > self.count[best]):
                            best = other
        if best is None:
            return None
        way: list[tuple[str, str, str]] = []
        giver = best
        while giver != taker:
            topic, to = came[giver]
            way.append((topic, giver, to))
            giver = to
        return way

    def _load(self, member: str) -> tuple[int, int]:
        return self.count[member], self.place[member]
