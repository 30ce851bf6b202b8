"""[pure] The assignor `uniform`: an even load with few moves. The load of a member is its number of
partitions.

If all members subscribe to the same topics, their loads differ by at most one, and no partition
moves without need. A partition that is new or moves is assigned to a member in a rack of its
replicas if such a member has capacity.

If the subscriptions differ, members first keep their partitions, and each free partition is
assigned to the subscriber with the lowest load. Then partitions move one by one from higher to
lower loads among the subscribers of their topic, until no move makes the loads more even. So if a
member has a partition of a topic, no subscriber of this topic has a load that is lower by two or
more.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from uuid import UUID

from kavka.coordinator.group.consumer.assignors import (
    AssignmentBuilder,
    Members,
    TopicsById,
    sorted_by_name,
    subscribers_by_topic,
)
from kavka.coordinator.group.consumer.records import Partitions

TopicIdPartition = tuple[UUID, int]


def assign_uniformly(members: Members, topics: TopicsById) -> dict[str, Partitions]:
    if not members:
        return {}
    first = next(iter(members.values())).topics
    if all(spec.topics is first or spec.topics == first for spec in members.values()):
        return _assign_same_topics(members, {topic_id: topics[topic_id] for topic_id in first}).result()
    return _assign_different_topics(members, topics).result()


def _retained(members: Members, topics: TopicsById) -> Iterator[tuple[str, list[TopicIdPartition]]]:
    """Yield each member with the previous partitions that it may retain: they exist, the member
    subscribes to their topics, and no earlier member retains them."""
    retained: set[TopicIdPartition] = set()
    for member_id in sorted(members):
        spec = members[member_id]
        retained_partitions: list[TopicIdPartition] = []
        for topic_id in sorted(spec.assigned, key=lambda topic_id: topic_id.bytes):
            topic = topics.get(topic_id)
            if topic is None or topic_id not in spec.topics:
                continue
            for partition in sorted(spec.assigned[topic_id]):
                tp = (topic_id, partition)
                if partition < topic.partitions and tp not in retained:
                    retained.add(tp)
                    retained_partitions.append(tp)
        yield member_id, retained_partitions


# ---- all members subscribe to the same topics


def _assign_same_topics(members: Members, topics: TopicsById) -> AssignmentBuilder:
    builder = AssignmentBuilder(members)
    total = sum(topic.partitions for topic in topics.values())
    load, remainder = divmod(total, len(members))
    for member_id, retained_partitions in _retained(members, topics):
        max_load = load
        if len(retained_partitions) > load and remainder:
            max_load += 1
            remainder -= 1
        if len(retained_partitions) > max_load:
            rack = members[member_id].rack_id
            if rack is not None:
                retained_partitions.sort(key=lambda tp: rack not in _racks(topics, tp))
            del retained_partitions[max_load:]
        for topic_id, partition in retained_partitions:
            builder.assign(member_id, topic_id, partition)
    free = list(_free_partitions(builder, topics))
    member_ids = sorted(members)
    loads = builder.loads
    capacity = {member_id: load - loads[member_id] for member_id in member_ids if loads[member_id] < load}
    free = _assign_by_rack(builder, members, topics, free, capacity)
    free = _assign_in_order(builder, free, capacity)
    # The remainder: at most one extra partition for each member without an extra partition.
    capacity = {member_id: 1 for member_id in member_ids if loads[member_id] == load}
    free = _assign_by_rack(builder, members, topics, free, capacity)
    _assign_in_order(builder, free, capacity)
    return builder


def _free_partitions(builder: AssignmentBuilder, topics: TopicsById) -> Iterator[TopicIdPartition]:
    """Yield the partitions that are not assigned yet."""
    assigned: dict[UUID, set[int]] = {topic_id: set() for topic_id in topics}
    for partitions_by_topic in builder.partitions.values():
        for topic_id, partitions in partitions_by_topic.items():
            assigned[topic_id] |= partitions
    for topic_id in sorted_by_name(topics):
        for partition in range(topics[topic_id].partitions):
            if partition not in assigned[topic_id]:
                yield topic_id, partition


def _assign_by_rack(
    builder: AssignmentBuilder,
    members: Members,
    topics: TopicsById,
    free: list[TopicIdPartition],
    capacity: dict[str, int],
) -> list[TopicIdPartition]:
    """Assign partitions to members in a rack of their replicas while these members have capacity.
    Return the remaining partitions."""
    members_by_rack: dict[str, list[str]] = {}
    for member_id in reversed(list(capacity)):
        rack = members[member_id].rack_id
        if rack is not None:
            members_by_rack.setdefault(rack, []).append(member_id)
    if not members_by_rack:
        return free
    remaining = []
    for tp in free:
        for rack in sorted(_racks(topics, tp)):
            member_ids = members_by_rack.get(rack)
            if member_ids:
                member_id = member_ids[-1]
                builder.assign(member_id, *tp)
                capacity[member_id] -= 1
                if not capacity[member_id]:
                    del capacity[member_id]
                    member_ids.pop()
                break
        else:
            remaining.append(tp)
    return remaining


def _assign_in_order(
    builder: AssignmentBuilder, free: list[TopicIdPartition], capacity: dict[str, int]
) -> list[TopicIdPartition]:
    """Assign partitions to one member after the other, up to its capacity. Return the remaining
    partitions."""
    unassigned = iter(free)
    for member_id, count in capacity.items():
        for _ in range(count):
            tp = next(unassigned, None)
            if tp is None:
                return []
            builder.assign(member_id, *tp)
    return list(unassigned)


def _racks(topics: TopicsById, tp: TopicIdPartition) -> frozenset[str]:
    """Return the racks of the partition's replicas."""
    topic_id, partition = tp
    racks = topics[topic_id].racks
    return racks[partition] if partition < len(racks) else frozenset()


# ---- the subscriptions differ


def _assign_different_topics(members: Members, topics: TopicsById) -> AssignmentBuilder:
    builder = AssignmentBuilder(members)
    for member_id, retained_partitions in _retained(members, topics):
        for topic_id, partition in retained_partitions:
            builder.assign(member_id, topic_id, partition)
    subscribers = subscribers_by_topic(members)
    subscribed = {topic_id: topics[topic_id] for topic_id in subscribers}
    free: dict[UUID, list[int]] = {}
    for topic_id, partition in _free_partitions(builder, subscribed):
        free.setdefault(topic_id, []).append(partition)
    # Topics with the fewest subscribers first.
    topic_ids = sorted(
        subscribed,
        key=lambda topic_id: (
            len(subscribers[topic_id]),
            -subscribed[topic_id].partitions,
            subscribed[topic_id].name,
            topic_id.bytes,
        ),
    )
    for topic_id in topic_ids:
        if topic_id in free:
            _assign_to_lowest(builder, members, topics, topic_id, free[topic_id], subscribers[topic_id])
    has_moved = True
    while has_moved:
        has_moved = False
        for topic_id in topic_ids:
            has_moved |= _balance(builder, topic_id, subscribers[topic_id])
    return builder


def _assign_to_lowest(
    builder: AssignmentBuilder,
    members: Members,
    topics: TopicsById,
    topic_id: UUID,
    partitions: list[int],
    subscribers: list[str],
) -> None:
    """Assign each partition to the subscriber with the lowest load. On a tie, prefer a member in a
    rack of the partition's replicas."""
    heap = [(builder.loads[member_id], member_id) for member_id in subscribers]
    heapq.heapify(heap)
    for partition in partitions:
        load, member_id = heap[0]
        racks = _racks(topics, (topic_id, partition))
        if racks and members[member_id].rack_id not in racks:
            same_rack = min(
                (entry for entry in heap if entry[0] == load and members[entry[1]].rack_id in racks), default=None
            )
            if same_rack is not None:
                builder.assign(same_rack[1], topic_id, partition)
                heap[heap.index(same_rack)] = (load + 1, same_rack[1])
                heapq.heapify(heap)
                continue
        builder.assign(member_id, topic_id, partition)
        heapq.heapreplace(heap, (load + 1, member_id))


def _balance(builder: AssignmentBuilder, topic_id: UUID, subscribers: list[str]) -> bool:
    """Move partitions of one topic while a move makes the loads more even. Return whether a
    partition moved.

    This terminates because every move reduces the sum of the squares of the loads. An entry of a
    heap is stale if the load of its member has changed.
    """
    loads, partitions = builder.loads, builder.partitions
    has_moved = False
    donors = [(-loads[member_id], member_id) for member_id in subscribers if partitions[member_id].get(topic_id)]
    receivers = [(loads[member_id], member_id) for member_id in subscribers]
    heapq.heapify(donors)
    heapq.heapify(receivers)
    while donors:
        load, donor = donors[0]
        if -load != loads[donor] or not partitions[donor][topic_id]:
            heapq.heappop(donors)
            if partitions[donor][topic_id]:
                heapq.heappush(donors, (-loads[donor], donor))
            continue
        while receivers[0][0] != loads[receivers[0][1]]:
            _, member_id = heapq.heappop(receivers)
            heapq.heappush(receivers, (loads[member_id], member_id))
        _, receiver = receivers[0]
        if loads[donor] - loads[receiver] < 2:
            break
        partition = max(partitions[donor][topic_id])
        builder.unassign(donor, topic_id, partition)
        builder.assign(receiver, topic_id, partition)
        heapq.heappush(donors, (-loads[receiver], receiver))
        has_moved = True
    return has_moved
