"""[pure] DescribeGroups for a classic group."""

from __future__ import annotations

from kavka.coordinator.group.state import STABLE, ClassicGroup
from kavka.protocol.messages.describe_groups import DescribedGroup, DescribedGroupMember


def describe_classic_group(group: ClassicGroup) -> DescribedGroup:
    is_stable = group.state is STABLE
    return DescribedGroup(
        group_id=group.group_id,
        group_state=group.state_name,
        protocol_type=group.protocol_type or "",
        protocol_data=(group.protocol or "") if is_stable else "",
        members=[
            DescribedGroupMember(
                member_id=member.member_id,
                group_instance_id=member.instance_id,
                client_id=member.client_id,
                client_host=member.client_host,
                member_metadata=member.metadata(group.protocol or "") if is_stable else b"",
                member_assignment=member.assignment if is_stable else b"",
            )
            for member in group.members.values()
        ],
    )
