"""The names that the clients export: methods of the Java clients, and the exports of `kavka`."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import kavka
import kavka.aio

# The methods of the clients of Kafka 4.3, except those that docs/gaps.md lists as missing.
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
def test_both_forms_of_a_client_have_every_method_of_the_java_client(client: str) -> None:
    for module in (kavka, kavka.aio):
        cls = getattr(module, client)
        missing = [name for name in JAVA[client].split() if not callable(getattr(cls, name, None))]
        assert not missing, f"{module.__name__}.{client}: {missing}"


@pytest.mark.parametrize("module", [kavka, kavka.aio], ids=["kavka", "kavka.aio"])
def test_type_checkers_see_the_names_that_exist_at_run_time(module: object) -> None:
    source = Path(module.__file__).read_text()  # type: ignore[attr-defined]
    imports = {
        alias.asname: node.module
        for block in ast.parse(source).body
        if isinstance(block, ast.If)
        for node in block.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    assert imports == module._MODULES  # type: ignore[attr-defined]
    for name in imports:
        assert getattr(module, name) is not None


def test_import_of_kavka_loads_no_submodule() -> None:
    program = "import sys, kavka; print([name for name in sys.modules if name.startswith('kavka.')])"
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "[]"
