"""What the clients offer, by Java's names of it in Python's spelling."""

from __future__ import annotations

import pytest

import kavka
import kavka.aio

# Every method of Kafka 4.3's clients, but those that docs/gaps.md says are missing.
JAVA = {
    "Producer": """
        abort_transaction begin_transaction close commit_transaction flush init_transactions metrics partitions_for
        prepare_transaction send send_offsets_to_transaction
    """,
    "Consumer": """
        assign assignment beginning_offsets close commit_async commit_sync committed current_lag end_offsets
        enforce_rebalance group_metadata list_topics metrics offsets_for_times partitions_for pause paused poll position
        resume seek seek_to_beginning seek_to_end subscribe subscription unsubscribe wakeup
    """,
    "Admin": """
        abort_transaction alter_configs alter_consumer_group_offsets alter_partition_reassignments
        alter_replica_log_dirs close create_partitions create_topics delete_consumer_group_offsets
        delete_consumer_groups delete_records delete_topics describe_classic_groups describe_cluster describe_configs
        describe_consumer_groups describe_features describe_log_dirs describe_producers describe_replica_log_dirs
        describe_topics describe_transactions elect_leaders fence_producers force_terminate_transaction
        incremental_alter_configs list_config_resources list_consumer_group_offsets list_consumer_groups list_groups
        list_offsets list_partition_reassignments list_topics list_transactions metrics
        remove_members_from_consumer_group unregister_broker update_features
    """,
}


@pytest.mark.parametrize("client", list(JAVA))
def test_both_forms_of_a_client_have_every_method_of_javas(client: str) -> None:
    for module in (kavka, kavka.aio):
        found = getattr(module, client)
        missing = [name for name in JAVA[client].split() if not callable(getattr(found, name, None))]
        assert not missing, f"{module.__name__}.{client}: {missing}"
