"""[pure] The assignor `uniform`: even shares, few moves.

All members subscribe to the same topics: shares differ by one at most, and no partition moves but those that have to
for that. A partition that has to move goes to a member in a rack of its replicas, where there is one with room.

They subscribe to different topics: what members have they keep, what nobody has goes to the subscriber with the
smallest share, and then partitions move, one by one, from a larger to a smaller share of the same topic's subscribers
until no such move makes shares more even. So of the subscribers of a topic that one has some of, none has less by two.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator
from uuid import UUID

from kavka.coordinator.group.consumer.assignors import Hands, Members, TopicsById, in_order
from kavka.coordinator.group.consumer.records import Partitions

Place = tuple[UUID, int]


def assign_uniformly(members: Members, topics: TopicsById) -> dict[str, Partitions]:
    if not members:
        return {}
    first = next(iter(members.values())).topics
    if all(spec.topics is first or spec.topics == first for spec in members.values()):
        return _assign_alike(members, {topic_id: topics[topic_id] for topic_id in first}).result()
    return _assign_unlike(members, topics).result()


def _kept(members: Members, topics: TopicsById) -> Iterator[tuple[str, list[Place]]]:
    """What each member has and may go on having, if no other has it too."""
    taken: set[Place] = set()
    for member_id in sorted(members):
        spec = members[member_id]
        places: list[Place] = []
        for topic_id in sorted(spec.assigned, key=lambda one: one.bytes):
            topic = topics.get(topic_id)
            if topic is None or topic_id not in spec.topics:
                continue
            for partition in sorted(spec.assigned[topic_id]):
                place = (topic_id, partition)
                if partition < topic.partitions and place not in taken:
                    taken.add(place)
                    places.append(place)
        yield member_id, places


# ---- all subscribe to the same


def _assign_alike(members: Members, topics: TopicsById) -> Hands:
    hands = Hands(members)
    total = sum(topic.partitions for topic in topics.values())
    share, extras = divmod(total, len(members))
    for member_id, places in _kept(members, topics):
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
            hands.give(member_id, topic_id, partition)
    free = list(_free(hands, topics))
    order = sorted(members)
    room = {member_id: share - hands.loads[member_id] for member_id in order if hands.loads[member_id] < share}
    free = _hand_out_near(hands, members, topics, free, room)
    free = _hand_out(hands, free, room)
    # Who kept one more than the share has had its extra.
    room = {member_id: 1 for member_id in order if hands.loads[member_id] == share}
    free = _hand_out_near(hands, members, topics, free, room)
    _hand_out(hands, free, room)
    return hands


def _free(hands: Hands, topics: TopicsById) -> Iterator[Place]:
    taken: dict[UUID, set[int]] = {topic_id: set() for topic_id in topics}
    for held in hands.held.values():
        for topic_id, partitions in held.items():
            taken[topic_id] |= partitions
    for topic_id in in_order(topics):
        has = taken[topic_id]
        for partition in range(topics[topic_id].partitions):
            if partition not in has:
                yield topic_id, partition


def _hand_out_near(
    hands: Hands, members: Members, topics: TopicsById, free: list[Place], room: dict[str, int]
) -> list[Place]:
    """To members in a rack of the partition's replicas, as far as they have room; gives back the rest."""
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
                hands.give(member_id, *place)
                room[member_id] -= 1
                if not room[member_id]:
                    del room[member_id]
                    waiting.pop()
                break
        else:
            rest.append(place)
    return rest


def _hand_out(hands: Hands, free: list[Place], room: dict[str, int]) -> list[Place]:
    places = iter(free)
    for member_id, count in room.items():
        for _ in range(count):
            place = next(places, None)
            if place is None:
                return []
            hands.give(member_id, *place)
    return list(places)


def _racks(topics: TopicsById, place: Place) -> Iterable[str]:
    racks = topics[place[0]].racks
    return sorted(racks[place[1]]) if place[1] < len(racks) else ()


def _is_near(topics: TopicsById, place: Place, rack: str) -> bool:
    racks = topics[place[0]].racks
    return place[1] < len(racks) and rack in racks[place[1]]


# ---- they subscribe to different topics


def _assign_unlike(members: Members, topics: TopicsById) -> Hands:
    hands = Hands(members)
    for member_id, places in _kept(members, topics):
        for topic_id, partition in places:
            hands.give(member_id, topic_id, partition)
    subscribers: dict[UUID, list[str]] = {}
    for member_id in sorted(members):
        for topic_id in members[member_id].topics:
            subscribers.setdefault(topic_id, []).append(member_id)
    wanted = {topic_id: topics[topic_id] for topic_id in subscribers}
    free: dict[UUID, list[int]] = {}
    for topic_id, partition in _free(hands, wanted):
        free.setdefault(topic_id, []).append(partition)
    # Where there is the least choice first.
    order = sorted(
        wanted, key=lambda one: (len(subscribers[one]), -wanted[one].partitions, wanted[one].name, one.bytes)
    )
    for topic_id in order:
        if topic_id in free:
            _spread(hands, members, topics, topic_id, free[topic_id], subscribers[topic_id])
    moved = True
    while moved:
        moved = False
        for topic_id in order:
            moved |= _even_out(hands, topic_id, subscribers[topic_id])
    return hands


def _spread(
    hands: Hands, members: Members, topics: TopicsById, topic_id: UUID, partitions: list[int], subscribers: list[str]
) -> None:
    heap = [(hands.loads[member_id], member_id) for member_id in subscribers]
    heapq.heapify(heap)
    for partition in partitions:
        load, member_id = heap[0]
        racks = frozenset(_racks(topics, (topic_id, partition)))
        if racks and members[member_id].rack_id not in racks:
            near = min(
                (entry for entry in heap if entry[0] == load and members[entry[1]].rack_id in racks), default=None
            )
            if near is not None:
                hands.give(near[1], topic_id, partition)
                heap[heap.index(near)] = (load + 1, near[1])
                heapq.heapify(heap)
                continue
        hands.give(member_id, topic_id, partition)
        heapq.heapreplace(heap, (load + 1, member_id))


def _even_out(hands: Hands, topic_id: UUID, subscribers: list[str]) -> bool:
    """Every move makes the sum of the squares of the shares smaller, so there is an end to them."""
    loads = hands.loads
    moved = False
    givers = [(-loads[one], one) for one in subscribers if hands.held[one].get(topic_id)]
    takers = [(loads[one], one) for one in subscribers]
    heapq.heapify(givers)
    heapq.heapify(takers)
    while givers:
        load, giver = givers[0]
        if -load != loads[giver] or not hands.held[giver][topic_id]:
            heapq.heappop(givers)
            if hands.held[giver][topic_id]:
                heapq.heappush(givers, (-loads[giver], giver))
            continue
        while takers[0][0] != loads[takers[0][1]]:
            _, stale = heapq.heappop(takers)
            heapq.heappush(takers, (loads[stale], stale))
        _, taker = takers[0]
        if loads[giver] - loads[taker] < 2:
            break
        partition = max(hands.held[giver][topic_id])
        hands.take(giver, topic_id, partition)
        hands.give(taker, topic_id, partition)
        heapq.heappush(givers, (-loads[taker], taker))
        moved = True
    return moved
