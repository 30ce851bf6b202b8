"""The action --verify of `kavka reassign-partitions`, which shows the progress of a plan."""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING

from kavka.cli.names import ids
from kavka.cli.options import Arguments
from kavka.cli.output import Progress, print_json
from kavka.cli.partitions import described_topics
from kavka.cli.reassign_plan import Plan
from kavka.cli.reassign_throttle import clear_throttles
from kavka.client.admin.types import TopicPartitionReplica
from kavka.common.types import TopicPartition

if TYPE_CHECKING:
    from kavka.client.admin import Admin
    from kavka.client.admin.types import PartitionReassignment

WATCH_INTERVAL_S = 1.0


def verify(admin: Admin, args: Arguments, plan: Plan) -> int:
    """Print the status of each reassignment and move of the plan, and return 0.

    If the cluster has no active reassignment and all moves have ended, clear the throttles, unless
    --preserve-throttles is present.
    """
    if args["watch"]:
        _watch(admin, plan)
    active = admin.list_partition_reassignments()
    states = _partition_states(admin, plan, active)
    moves = _move_states(admin, plan.directories)
    if args["json"]:
        print_json(
            {
                "partitions": [
                    {"topic": tp.topic, "partition": tp.partition, "done": has_ended, "status": status}
                    for tp, (has_ended, status) in states.items()
                ],
                "replicas": [
                    {
                        "topic": r.topic,
                        "partition": r.partition,
                        "broker": r.broker_id,
                        "done": has_ended,
                        "status": status,
                    }
                    for r, (has_ended, status) in moves.items()
                ],
            }
        )
    else:
        print("\n".join(["Status of partition reassignment:", *(status for _, status in states.values())]))
        print("\n".join(status for _, status in moves.values()))
    if not active and all(has_ended for has_ended, _ in moves.values()) and not args["preserve-throttles"]:
        clear_throttles(admin, plan.replicas, quiet=bool(args["json"]))
    return 0


def _partition_states(
    admin: Admin, plan: Plan, active: Mapping[TopicPartition, PartitionReassignment]
) -> dict[TopicPartition, tuple[bool, str]]:
    """Return whether the reassignment of each partition has ended, and its status as text."""
    topics = {tp.topic for tp in plan.replicas if tp not in active}
    current = {
        TopicPartition(description.name, info.partition): [node.id for node in info.replicas]
        for description in described_topics(admin, topics)
        for info in description.partitions
    }
    states = {}
    for tp, planned in sorted(plan.replicas.items()):
        if tp in active:
            states[tp] = False, f"Reassignment of partition {tp} is still in progress."
        elif current.get(tp, []) == planned:
            states[tp] = True, f"Reassignment of partition {tp} is completed."
        else:
            replicas = f"{ids(current.get(tp, []))} rather than {ids(planned)}."
            states[tp] = True, f"There is no active reassignment of partition {tp}, but replica set is {replicas}"
    return states


def replica_directories(
    admin: Admin, replicas: Collection[TopicPartitionReplica]
) -> dict[TopicPartitionReplica, tuple[str | None, str | None]]:
    """Return the current and the future log directory of each replica. Each is None if there is
    none."""
    if not replicas:
        return {}
    brokers = sorted({replica.broker_id for replica in replicas})
    descriptions = admin.describe_log_dirs(brokers, sorted({TopicPartition(r.topic, r.partition) for r in replicas}))
    directories_by_replica: dict[TopicPartitionReplica, tuple[str | None, str | None]] = {}
    for broker, directories in descriptions.items():
        for path, description in directories.items():
            for tp, infos in description.replicas.items():
                replica = TopicPartitionReplica(tp.topic, tp.partition, broker)
                current, future = directories_by_replica.get(replica, (None, None))
                for info in infos:
                    current, future = (current, path) if info.is_future else (path, future)
                directories_by_replica[replica] = current, future
    return directories_by_replica


def _move_states(
    admin: Admin, planned: Mapping[TopicPartitionReplica, str]
) -> dict[TopicPartitionReplica, tuple[bool, str]]:
    """Return whether the move of each replica has ended, and its status as text."""
    directories = replica_directories(admin, planned)
    states = {}
    for replica in sorted(planned, key=by_broker):
        partition, broker = f"Partition {replica.topic}-{replica.partition}", f"broker {replica.broker_id}"
        path = planned[replica]
        current, future = directories.get(replica, (None, None))
        if current is None:
            status = f"{partition} is not found in any live log dir on {broker}. "
            status += "There is likely an offline log directory on the broker."
        elif future is None and current == path:
            status = f"Reassignment of replica {replica_name(replica)} completed successfully."
        elif future is None:
            status = f"{partition} on {broker} is not being moved from log dir {current} to {path}."
        elif future == path:
            status = f"Reassignment of replica {replica_name(replica)} is still in progress."
        else:
            status = f"{partition} on {broker} is being moved to log dir {future} instead of {path}."
        states[replica] = current is None or future is None, status
    return states


def _watch(admin: Admin, plan: Plan) -> None:
    """Show the progress until no reassignment and no move of the plan is active."""
    total = len(plan.replicas) + len(plan.directories)
    with Progress() as progress:
        while True:
            active = admin.list_partition_reassignments(list(plan.replicas))
            pending = [str(tp) for tp in sorted(active)]
            moves = _move_states(admin, plan.directories)
            pending += [replica_name(replica) for replica, (has_ended, _) in moves.items() if not has_ended]
            if not pending:
                return
            names = ", ".join(pending[:3]) + (" …" if len(pending) > 3 else "")
            progress.show(f"{total - len(pending)} of {total} done; moving {names}", force=True)
            time.sleep(WATCH_INTERVAL_S)


def by_broker(replica: TopicPartitionReplica) -> tuple[int, str, int]:
    return replica.broker_id, replica.topic, replica.partition


def replica_name(replica: TopicPartitionReplica) -> str:
    return f"{replica.topic}-{replica.partition}-{replica.broker_id}"
