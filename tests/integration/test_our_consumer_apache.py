"""What our consumer does with Kavka it does with Apache Kafka: the same tests, a part of them in every run.

All of them: `pytest --target apache,apache39 tests/integration/test_our_consumer*.py`.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import test_our_consumer as calls
import test_our_consumer_groups as groups
from test_our_consumer import group, make  # noqa: F401

from tests.support.our_consumer import GROUPS
from tests.support.targets import APACHE, APACHE_39, Target, start_target

pytestmark = [pytest.mark.java, pytest.mark.slow]


@pytest.fixture(scope="module", params=[APACHE, APACHE_39])
def servers(
    java_parts: None, request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[str]:
    name = str(request.param)
    settings = GROUPS
    if name == APACHE_39:
        settings = {key: value for key, value in GROUPS.items() if not key.startswith("group.consumer.")}
    broker: Target = start_target(name, tmp_path_factory.mktemp(name), settings)
    try:
        yield broker.bootstrap_servers
    finally:
        broker.close()


@pytest.fixture(params=["classic", "consumer"])
def protocol(request: pytest.FixtureRequest) -> str:
    apache = request.node.callspec.params.get("servers")
    if request.param == "consumer" and apache == APACHE_39:
        pytest.skip("with ZooKeeper, Kafka 3.9 has no groups of the new protocol")
    return str(request.param)


test_assigned_partitions = calls.test_assigned_partitions_are_read_from_the_beginning
test_seek = calls.test_seek_moves_to_any_offset
test_offsets = calls.test_offsets_of_times_beginnings_and_ends
test_commits = calls.test_what_one_commits_the_next_goes_on_with
test_chosen_commits = calls.test_commits_of_chosen_partitions_and_offsets
test_automatic_commits = calls.test_automatic_commits_come_in_time_and_at_the_end
test_out_of_range = calls.test_an_offset_out_of_range_is_reset_or_raised
test_arrow = calls.test_arrow_has_all_columns
test_large_records = calls.test_a_record_larger_than_a_fetch_is_read
test_moves = groups.test_nothing_is_read_twice_when_partitions_move
test_static_members = groups.test_a_static_member_that_comes_back_causes_no_rebalance
test_own_assignor = groups.test_an_assignor_of_ones_own
test_subscriptions = groups.test_a_changed_subscription_moves_to_the_other_topic
test_read_committed = groups.test_read_committed_sees_only_what_was_committed
test_offsets_in_transactions = groups.test_offsets_go_with_a_transaction
