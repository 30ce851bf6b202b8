"""[pure] The assignor `uniform`: even shares with few moves.

All members subscribe to the same topics: shares differ by at most one, and only the partitions move
that have to. A partition that moves goes to a member in a rack of its replicas if that member has
room.

The subscriptions differ: members keep their partitions, and each free partition goes to the
subscriber with the smallest share. Then partitions move one by one from larger to smaller shares
among the subscribers of their topic, until no move makes the shares more even. So no subscriber of
a topic has two partitions less than another that owns some of it.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator
from uuid import UUID

from kavka.coordinator.group.consumer.assignors import AssignmentBuilder, Members, TopicsById, in_order
from kavka.coordinator.group.consumer.records import Partitions

Place = tuple[UUID, int]


def assign_uniformly(members: Members, topics: TopicsById) -> dict[str, Partitions]:
    if not members:
        return {}
    first = next(iter(members.values())).topics
    if all(spec.topics is first or spec.topics == first for spec in members.values()):
        return _assign_alike(members, {topic_id: topics[topic_id] for topic_id in first}).result()
    return _assign_unlike(members, topics).result()


def _retained(members: Members, topics: TopicsById) -> Iterator[tuple[str, list[Place]]]:
    """The partitions that each member retains: subscribed, existing, and not retained by another
    member."""
    taken: set[Place] = set()
    for member_id in sorted(members):
        spec = members[member_id]
        places: list[Place] = []
        for topic_id in sorted(spec.assigned, key=lambda topic_id: topic_id.bytes):
            topic = topics.get(topic_id)
            if topic is None or topic_id not in spec.topics:
                continue
            for partition in sorted(spec.assigned[topic_id]):
                place = (topic_id, partition)
                if partition < topic.partitions and place not in taken:
                    taken.add(place)
                    places.append(place)
        yield member_id, places


# ---- all members subscribe to the same topics


def _assign_alike(members: Members, topics: TopicsById) -> AssignmentBuilder:
    builder = AssignmentBuilder(members)
    total = sum(topic.partitions for topic in topics.values())
    share, extras = divmod(total, len(members))
    for member_id, places in _retained(members, topics):
        may_keep = share
        if len(places) > share and extras:
            may_keep += 1
            extras -= 1
        if len(places) > may_keep:
            rack = members[member_id].rack_id
            if rack is not None:
                places.sort(key=lambda place: not _is_near(topics, place, rack))
            del places[may_keep:]
        for topic_id, partition in places:
            builder.assign(member_id, topic_id, partition)
    free = list(_free(builder, topics))
    order = sorted(members)
    room = {member_id: share - builder.loads[member_id] for member_id in order if builder.loads[member_id] < share}
    free = _assign_near(builder, members, topics, free, room)
    free = _assign_free(builder, free, room)
    # Members with one partition more than the share already have their extra one.
    room = {member_id: 1 for member_id in order if builder.loads[member_id] == share}
    free = _assign_near(builder, members, topics, free, room)
    _assign_free(builder, free, room)
    return builder


def _free(builder: AssignmentBuilder, topics: TopicsById) -> Iterator[Place]:
    taken: dict[UUID, set[int]] = {topic_id: set() for topic_id in topics}
    for held in builder.held.values():
        for topic_id, partitions in held.items():
            taken[topic_id] |= partitions
    for topic_id in in_order(topics):
        has = taken[topic_id]
        for partition in range(topics[topic_id].partitions):
            if partition not in has:
                yield topic_id, partition


def _assign_near(
    builder: AssignmentBuilder, members: Members, topics: TopicsById, free: list[Place], room: dict[str, int]
) -> list[Place]:
    """Assign to members in a rack of the partition's replicas while they have room; returns the
    remaining partitions."""
    near: dict[str, list[str]] = {}
    for member_id in reversed(list(room)):
        rack = members[member_id].rack_id
        if rack is not None:
            near.setdefault(rack, []).append(member_id)
    if not near:
        return free
    rest = []
    for place in free:
        for rack in _racks(topics, place):
            waiting = near.get(rack)
            if waiting:
                member_id = waiting[-1]
                builder.assign(member_id, *place)
                room[member_id] -= 1
                if not room[member_id]:
                    del room[member_id]
                    waiting.pop()
                break
        else:
            rest.append(place)
    return rest


def _assign_free(builder: AssignmentBuilder, free: list[Place], room: dict[str, int]) -> list[Place]:
    places = iter(free)
    for member_id, count in room.items():
        for _ in range(count):
            place = next(places, None)
            if place is None:
                return []
            builder.assign(member_id, *place)
    return list(places)


def _racks(topics: TopicsById, place: Place) -> Iterable[str]:
    racks = topics[place[0]].racks
    return sorted(racks[place[1]]) if place[1] < len(racks) else ()


def _is_near(topics: TopicsById, place: Place, rack: str) -> bool:
    racks = topics[place[0]].racks
    return place[1] < len(racks) and rack in racks[place[1]]


# ---- the subscriptions differ


def _assign_unlike(members: Members, topics: TopicsById) -> AssignmentBuilder:
    builder = AssignmentBuilder(members)
    for member_id, places in _retained(members, topics):
        for topic_id, partition in places:
            builder.assign(member_id, topic_id, partition)
    subscribers: dict[UUID, list[str]] = {}
    for member_id in sorted(members):
        for topic_id in members[member_id].topics:
            subscribers.setdefault(topic_id, []).append(member_id)
    subscribed = {topic_id: topics[topic_id] for topic_id in subscribers}
    free: dict[UUID, list[int]] = {}
    for topic_id, partition in _free(builder, subscribed):
        free.setdefault(topic_id, []).append(partition)
    # Topics with the fewest subscribers first.
    order = sorted(
        subscribed,
        key=lambda topic_id: (
            len(subscribers[topic_id]),
            -subscribed[topic_id].partitions,
            subscribed[topic_id].name,
            topic_id.bytes,
        ),
    )
    for topic_id in order:
        if topic_id in free:
            _assign_to_smallest(builder, members, topics, topic_id, free[topic_id], subscribers[topic_id])
    moved = True
    while moved:
        moved = False
        for topic_id in order:
            moved |= _balance(builder, topic_id, subscribers[topic_id])
    return builder


def _assign_to_smallest(
    builder: AssignmentBuilder,
    members: Members,
    topics: TopicsById,
    topic_id: UUID,
    partitions: list[int],
    subscribers: list[str],
) -> None:
    heap = [(builder.loads[member_id], member_id) for member_id in subscribers]
    heapq.heapify(heap)
    for partition in partitions:
        load, member_id = heap[0]
        racks = frozenset(_racks(topics, (topic_id, partition)))
        if racks and members[member_id].rack_id not in racks:
            near = min(
                (entry for entry in heap if entry[0] == load and members[entry[1]].rack_id in racks), default=None
            )
            if near is not None:
                builder.assign(near[1], topic_id, partition)
                heap[heap.index(near)] = (load + 1, near[1])
                heapq.heapify(heap)
                continue
        builder.assign(member_id, topic_id, partition)
        heapq.heapreplace(heap, (load + 1, member_id))


def _balance(builder: AssignmentBuilder, topic_id: UUID, subscribers: list[str]) -> bool:
    """Terminates because every move reduces the sum of the squares of the shares."""
    loads = builder.loads
    moved = False
    givers = [(-loads[member_id], member_id) for member_id in subscribers if builder.held[member_id].get(topic_id)]
    takers = [(loads[member_id], member_id) for member_id in subscribers]
    heapq.heapify(givers)
    heapq.heapify(takers)
    while givers:
        load, giver = givers[0]
        if -load != loads[giver] or not builder.held[giver][topic_id]:
            heapq.heappop(givers)
            if builder.held[giver][topic_id]:
                heapq.heappush(givers, (-loads[giver], giver))
            continue
        while takers[0][0] != loads[takers[0][1]]:
            _, stale = heapq.heappop(takers)
            heapq.heappush(takers, (loads[stale], stale))
        _, taker = takers[0]
        if loads[giver] - loads[taker] < 2:
            break
        partition = max(builder.held[giver][topic_id])
        builder.unassign(giver, topic_id, partition)
        builder.assign(taker, topic_id, partition)
        heapq.heappush(givers, (-loads[taker], taker))
        moved = True
    return moved
