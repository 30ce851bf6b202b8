"""The actions of `kavka reassign-partitions` that change the cluster: execute and cancel."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import TYPE_CHECKING

from kavka.cli.options import Arguments
from kavka.cli.reassign_plan import Plan, as_reassignment_json, current_replicas
from kavka.cli.reassign_throttle import clear_throttles, throttle_log_dirs
from kavka.cli.reassign_verify import by_broker, replica_directories, replica_name
from kavka.cli.tool import ToolError, reason
from kavka.client.admin import AdminError
from kavka.common.errors import ErrorCode

if TYPE_CHECKING:
    from kavka.client.admin import Admin
    from kavka.client.admin.types import TopicPartitionReplica

RETRY_INTERVAL_S = 0.1

EXISTING_REASSIGNMENT = (
    "Cannot execute because there is an existing partition assignment.  Use --additional to override this and create a "
    "new partition assignment in addition to the existing one. The --additional flag can also be used to change the "
    "throttle by resubmitting the current reassignment."
)
VERIFY_LATER = (
    "Warning: You must run --verify periodically, until the reassignment completes, to ensure the throttle is removed."
)


def execute(admin: Admin, args: Arguments, plan: Plan) -> int:
    """Start the reassignments and moves of the plan, and return 0. Raise ToolError if the plan is
    invalid or a broker rejects it."""
    plan.check()
    active = admin.list_partition_reassignments()
    if active and not args["additional"]:
        raise ToolError(EXISTING_REASSIGNMENT)
    live_brokers = {node.id for node in admin.describe_cluster().nodes}
    for broker in sorted({broker for replicas in plan.replicas.values() for broker in replicas}):
        if broker not in live_brokers:
            raise ToolError(f"Unknown broker id {broker}")
    all_current = current_replicas(admin, {tp.topic for tp in plan.replicas})
    missing = sorted(tp for tp in plan.replicas if tp not in all_current)
    if missing:
        raise ToolError(f"Unable to find partition: {', '.join(map(str, missing))}")
    current = {tp: all_current[tp] for tp in plan.replicas}
    if args["disallow-replication-factor-change"]:
        for tp, replicas in plan.replicas.items():
            move = active.get(tp)
            factor = len(move.replicas) - len(move.adding_replicas) if move else len(current[tp])
            if len(replicas) != factor:
                raise ToolError(f"the plan changes the replication factor of {tp} from {factor} to {len(replicas)}")
    print(
        f"Current partition replica assignment\n\n{as_reassignment_json(current)}\n\n"
        "Save this to use as the --reassignment-json-file option during rollback"
    )
    if args["throttle"] >= 0 or args["replica-alter-log-dirs-throttle"] >= 0:
        print(VERIFY_LATER)
        if args["throttle"] >= 0:
            admin.throttle_replication(args["throttle"], active, plan.replicas, current)
            print(f"The inter-broker throttle limit was set to {args['throttle']} B/s")
        if args["replica-alter-log-dirs-throttle"] >= 0:
            throttle_log_dirs(admin, args["replica-alter-log-dirs-throttle"], plan.directories)
    try:
        admin.alter_partition_reassignments(plan.replicas)
    except AdminError as error:
        raise ToolError(_error_text("Error reassigning partition(s)", error)) from None
    plural = "" if len(plan.replicas) == 1 else "s"
    print(f"Successfully started partition reassignment{plural} for {','.join(map(str, sorted(plan.replicas)))}")
    if plan.directories:
        _move_log_dirs(admin, plan.directories, args["timeout"] / 1000)
    return 0


def _error_text(summary: str, error: AdminError) -> str:
    return f"{summary}: " + "; ".join(f"{tp}: {reason(cause)}" for tp, cause in sorted(error.errors.items()))


def _move_log_dirs(admin: Admin, moves: Mapping[TopicPartitionReplica, str], timeout: float) -> None:
    """Start moves to other log directories. Retry until the replicas exist on their brokers.

    Raise ToolError for any other error, and after the timeout.
    """
    deadline = time.monotonic() + timeout
    pending = dict(moves)
    while pending:
        failed = set()
        try:
            admin.alter_replica_log_dirs(pending)
        except AdminError as error:
            failed = set(error.errors)
            for replica, cause in error.errors.items():
                if cause.code is not ErrorCode.REPLICA_NOT_AVAILABLE:
                    raise ToolError(f"Failed to alter dir for {replica_name(replica)}: {reason(cause)}") from None
        for replica in sorted(pending, key=by_broker):
            if replica not in failed:
                print(
                    f"Successfully started moving log directory to {pending.pop(replica)} for replica "
                    f"{replica.topic}-{replica.partition} with broker {replica.broker_id} "
                )
        if pending and time.monotonic() >= deadline:
            plural = "" if len(pending) == 1 else "s"
            names = ",".join(replica_name(replica) for replica in sorted(pending, key=by_broker))
            raise ToolError(f"Timed out before log directory move{plural} could be started for: {names}")
        if pending:
            time.sleep(RETRY_INTERVAL_S)


def cancel(admin: Admin, args: Arguments, plan: Plan) -> int:
    """Cancel the active reassignments and moves of the plan, and return 0."""
    reassignments = admin.list_partition_reassignments(list(plan.replicas))
    active = sorted(tp for tp, r in reassignments.items() if r.adding_replicas or r.removing_replicas)
    if active:
        plural = "" if len(active) == 1 else "s"
        try:
            admin.alter_partition_reassignments(dict.fromkeys(active))
        except AdminError as error:
            raise ToolError(_error_text(f"Error cancelling partition reassignment{plural}", error)) from None
        print(f"Successfully cancelled partition reassignment{plural} for: {','.join(map(str, active))}")
    else:
        print("None of the specified partition reassignments are active.")
    directories = replica_directories(admin, plan.directories)
    # Moving a replica to its current directory cancels the active move.
    cancelled = {
        replica: current
        for replica, (current, future) in directories.items()
        if current and future and replica in plan.directories
    }
    if cancelled:
        _move_log_dirs(admin, cancelled, args["timeout"] / 1000)
    else:
        # Kafka's tool prints no newline here.
        print("None of the specified partition moves are active.", end="")
    if not args["preserve-throttles"]:
        clear_throttles(admin, plan.replicas)
    return 0
