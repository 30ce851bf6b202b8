"""Passwords and ACLs change while producers and consumers run: Kavka's clients and librdkafka."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from functools import partial

import pytest

from kavka import (
    Acl,
    AclBinding,
    AclFilter,
    AclOperation,
    AclPermission,
    AclResourceType,
    Admin,
    AuthenticationFailed,
    NewTopic,
    OffsetSpec,
    PatternFilter,
    ResourcePattern,
    TopicPartition,
)
from kavka.testing import Broker
from tests.support.acls import AUTHORIZER
from tests.support.processes import wait_until
from tests.support.secure_clients import confluent_settings
from tests.support.secured_load import (
    DENIED,
    NOT_SENT,
    ConfluentReceiver,
    ConfluentSender,
    OurReceiver,
    OurSender,
    Receiver,
    Sender,
)

pytestmark = [pytest.mark.timeout(180), pytest.mark.records]

MECHANISM = "SCRAM-SHA-256"
USER = "alice"
# A change must take effect within this time.
MAX_DELAY_S = 1.0
QUIET_S = 1.5


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    settings = AUTHORIZER | {"super.users": "User:admin"}
    users = {"admin": "admin-secret", USER: "first-secret"}
    with Broker(settings, security={"protocol": "SASL_SSL", "users": users}) as broker:
        yield broker


@pytest.fixture(scope="module")
def admin(broker: Broker) -> Iterator[Admin]:
    with Admin(broker.client_settings("admin")) as admin:
        yield admin


class Load:
    """Two producers and two consumers of one user, each pair with its topic."""

    def __init__(self, broker: Broker, admin: Admin, name: str) -> None:
        topics = [f"{name}-ours", f"{name}-confluent"]
        admin.create_topics([NewTopic(topic, 1, 1) for topic in topics])
        rights = [
            binding(topic, operation) for topic in topics for operation in (AclOperation.READ, AclOperation.WRITE)
        ]
        admin.create_acls([*rights, binding(topics[1], AclOperation.READ, AclResourceType.GROUP)])
        ours = broker.client_settings(USER)
        theirs = confluent_settings(broker.security, broker.bootstrap_servers, USER, MECHANISM)
        self.our_sender = OurSender(ours, topics[0])
        self.senders: list[Sender] = [self.our_sender, ConfluentSender(theirs, topics[1])]
        self.receivers: list[Receiver] = [OurReceiver(ours, topics[0]), ConfluentReceiver(theirs, topics[1])]
        self._stack = contextlib.ExitStack()

    def __enter__(self) -> Load:
        with contextlib.ExitStack() as stack:
            for worker in (*self.receivers, *self.senders):
                stack.enter_context(worker)
            wait_until(lambda: all(r.arrivals for r in self.receivers), timeout=30, what=f"records {self._failures()}")
            self._stack = stack.pop_all()
        return self

    def _failures(self) -> list[object]:
        return [failure for worker in (*self.receivers, *self.senders) for failure in worker.failures]

    def __exit__(self, *error: object) -> None:
        self._stack.close()

    def finish(self, admin: Admin) -> None:
        """Stop the producers. Every accepted record, and no other, is in the log and arrives once
        and in order."""
        for sender, receiver in zip(self.senders, self.receivers, strict=True):
            sender.stop()
            accepted = sender.accepted()
            partition = TopicPartition(sender.topic, 0)
            end = admin.list_offsets({partition: OffsetSpec.latest()})[partition].offset
            assert end == len(accepted)
            wait_until(partial(receiver.has_received, len(accepted)), timeout=30, what=f"all of {sender.topic}")
            receiver.stop()
            assert receiver.values() == accepted
            assert (sender.failures, receiver.failures) == ([], [])


def binding(name: str, operation: AclOperation, kind: AclResourceType = AclResourceType.TOPIC) -> AclBinding:
    acl = Acl(f"User:{USER}", "*", operation, AclPermission.ALLOW)
    return AclBinding(ResourcePattern(kind, name), acl)


def can_connect(broker: Broker, password: str) -> bool:
    settings = broker.client_settings(USER)
    settings["sasl.jaas.config"] = ""
    with Admin({**settings, "sasl.username": USER, "sasl.password": password}) as client:
        try:
            client.describe_cluster()
        except AuthenticationFailed:
            return False
    return True


def test_a_password_changes_under_load(broker: Broker, admin: Admin) -> None:
    """New connections need the new password as soon as the change is acknowledged; existing
    connections continue."""
    password = broker.security.users[USER]
    with Load(broker, admin, "passwords") as load:
        opened = load.our_sender.connections_opened
        for number in range(3):
            new_password = f"secret-{number}"
            admin.alter_user_scram_credentials({USER: {MECHANISM: new_password}})
            assert can_connect(broker, new_password)
            assert not can_connect(broker, password)
            password = new_password
            time.sleep(0.3)
        admin.alter_user_scram_credentials({USER: {MECHANISM: None}})
        assert not can_connect(broker, password)
        time.sleep(0.5)
        counts = [len(sender.outcomes) for sender in load.senders]
        time.sleep(0.5)
        assert all(len(s.outcomes) > count for s, count in zip(load.senders, counts, strict=True))
        load.finish(admin)
        assert load.our_sender.connections_opened == opened
        assert all(len(sender.accepted()) == len(sender.outcomes) for sender in load.senders)
    admin.alter_user_scram_credentials({USER: {MECHANISM: broker.security.users[USER]}})


def test_the_right_to_write_changes_under_load(broker: Broker, admin: Admin) -> None:
    """No record that was sent after the response to a change gets the outcome before the change."""
    with Load(broker, admin, "writes") as load:
        periods: list[tuple[float, float, int]] = []
        for _ in range(3):
            for sender in load.senders:
                pattern = PatternFilter(AclResourceType.TOPIC, sender.topic)
                assert admin.delete_acls([AclFilter(pattern, operation=AclOperation.WRITE)])
            start = time.monotonic()
            time.sleep(0.6)
            periods.append((start, time.monotonic(), DENIED))
            admin.create_acls([binding(sender.topic, AclOperation.WRITE) for sender in load.senders])
            start = time.monotonic()
            time.sleep(0.6)
            periods.append((start, time.monotonic(), 0))
        load.finish(admin)
        for sender in load.senders:
            for start, end, expected in periods:
                assert sender.codes_between(start, end) - {NOT_SENT} == {expected}, sender.topic


def test_the_right_to_read_changes_under_load(broker: Broker, admin: Admin) -> None:
    """A fetch that is pending at the change may still return records, within a second. When the
    right is restored, the consumers get every record."""
    with Load(broker, admin, "reads") as load:
        for sender in load.senders:
            pattern = PatternFilter(AclResourceType.TOPIC, sender.topic)
            assert admin.delete_acls([AclFilter(pattern, operation=AclOperation.READ)])
        changed_at = time.monotonic()
        time.sleep(MAX_DELAY_S + QUIET_S)
        restored_at = time.monotonic()
        admin.create_acls([binding(sender.topic, AclOperation.READ) for sender in load.senders])
        time.sleep(0.5)
        load.finish(admin)
        for sender, receiver in zip(load.senders, load.receivers, strict=True):
            sent_at = {outcome.value: outcome.sent_at for outcome in sender.outcomes}
            during = [arrival for arrival in receiver.arrivals if changed_at + MAX_DELAY_S < arrival.at < restored_at]
            assert [arrival for arrival in during if sent_at[arrival.value] > changed_at + MAX_DELAY_S] == []
            assert len(during) == 0, sender.topic
            assert receiver.denials and receiver.denials[0] < changed_at + MAX_DELAY_S + QUIET_S
            assert sum(outcome.sent_at > changed_at + MAX_DELAY_S for outcome in sender.outcomes) > 50
