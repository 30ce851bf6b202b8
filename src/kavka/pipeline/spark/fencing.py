"""One driver per application: the last one that started.

A driver claims its application with InitProducerId for a transactional id that only drivers of this
application use. The transaction coordinator stores the claims and gives each claim a higher epoch,
so they depend neither on the machine nor on the clock of a driver. The source compares its claim
with the coordinator's before it begins a micro-batch. A driver with an older claim ends before it
writes to the checkpoint.
"""

from __future__ import annotations

import logging
from typing import NamedTuple

from kavka.client.admin import Admin
from kavka.common.errors import ErrorCode, KafkaError
from kavka.pipeline.spark.errors import PipelineError

logger = logging.getLogger(__name__)

_TIMEOUT = 30.0
_NOT_AUTHORIZED = (ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, ErrorCode.CLUSTER_AUTHORIZATION_FAILED)


class Fenced(PipelineError):
    """Another driver has claimed the application. A retry does not help."""


class Claim(NamedTuple):
    transactional_id: str
    producer_id: int
    epoch: int

    def to_text(self) -> str:
        return f"{self.producer_id}:{self.epoch}:{self.transactional_id}"

    @staticmethod
    def from_text(text: str) -> Claim:
        producer_id, epoch, transactional_id = text.split(":", 2)
        return Claim(transactional_id, int(producer_id), int(epoch))


def claim(admin: Admin, application: str) -> Claim | None:
    """Claim an application for this driver. None, with a warning, if the user may not use
    transactional ids that begin with the application's id."""
    transactional_id = f"{application}-driver"
    try:
        producer_id, epoch = admin.fence_producers(transactional_id, timeout=_TIMEOUT)[transactional_id]
    except KafkaError as error:
        if error.code not in _NOT_AUTHORIZED:
            raise
        logger.warning(
            "A second driver of %s would not be noticed, because this user may not write with the transactional id "
            "%s. Add the ACL: kafka-acls --add --operation Write --operation Describe --transactional-id %s",
            application, transactional_id, transactional_id,
        )  # fmt: skip
        return None
    return Claim(transactional_id, producer_id, epoch)


def check(admin: Admin, claim: Claim) -> None:
    """Raise Fenced if another driver has made a later claim. If the coordinator does not know the
    id, there is no later claim: it only removes ids that were not used for a week."""
    try:
        last = admin.describe_transactions([claim.transactional_id], timeout=_TIMEOUT)[claim.transactional_id]
    except KafkaError as error:
        if error.code == ErrorCode.TRANSACTIONAL_ID_NOT_FOUND:
            return
        raise
    if (last.producer_id, last.producer_epoch) != (claim.producer_id, claim.epoch):
        application = claim.transactional_id.removesuffix("-driver")
        raise Fenced(f"another driver of the application {application} was started, so this one ends")
