"""Copies the ACLs of mirrored topics to the target, as MirrorMaker 2 does.

Only ACLs of literal topic names are copied, to the name of the topic in the target. Only the mirror
writes to mirrored topics, so an ACL that allows Write is not copied, and one that allows All allows
Read. ACLs that are removed in the source stay in the target.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable

from kavka.client.admin import Admin
from kavka.client.admin.base import AdminError
from kavka.common.errors import ErrorCode, KafkaError
from kavka.pipeline.mirror.flow import Flow
from kavka.security.acls import (
    WILDCARD,
    AclBinding,
    AclFilter,
    Operation,
    PatternFilter,
    PatternType,
    Permission,
    ResourceType,
)

logger = logging.getLogger(__name__)

_TOPIC_ACLS = AclFilter(PatternFilter(ResourceType.TOPIC, None, PatternType.LITERAL))
# Errors that remain until an administrator acts: they are logged once.
_PERMANENT = {
    ErrorCode.SECURITY_DISABLED: "has no authorizer",
    ErrorCode.UNSUPPORTED_VERSION: "does not support ACLs",
    ErrorCode.CLUSTER_AUTHORIZATION_FAILED: "does not permit it",
}


class AclSync:
    """Syncs the ACLs of a flow. Only one thread may call it."""

    def __init__(
        self, flow: Flow, source: Admin, target: Admin, report: Callable[[str], object] = logger.error
    ) -> None:
        self._flow = flow
        self._report = report
        self._source = source
        self._target = target
        self._last_reason = ""

    def sync(self) -> None:
        """Add the ACLs of the source's topics to the target. If a cluster has no authorizer or does
        not permit it, log the reason once."""
        flow = self._flow
        try:
            bindings = target_bindings(flow, self._source.describe_acls(_TOPIC_ACLS))
        except KafkaError as error:
            self._log_once(error, flow.source, "Describe")
            return
        if bindings:
            try:
                self._target.create_acls(bindings)
            except AdminError as error:
                self._log_refused(error)
                return
        self._last_reason = ""

    def _log_refused(self, error: AdminError) -> None:
        """Report the ACLs that the target does not accept, e.g. because of their names. Raise
        any other error, so that the sync is retried."""
        failures = error.errors.items()
        if any(failure.code is not ErrorCode.INVALID_REQUEST for _, failure in failures):
            self._log_once(error, self._flow.target, "Alter")
            return
        for binding, failure in failures:
            self._report(f"cannot sync an ACL of {binding.pattern.name}: {failure}")

    def _log_once(self, error: KafkaError, cluster: str, operation: str) -> None:
        cause = _PERMANENT.get(error.code)
        if cause is None:
            raise error
        if error.code is ErrorCode.CLUSTER_AUTHORIZATION_FAILED:
            cause += f" ({operation} on the cluster)"
        reason = f"{cluster} {cause}"
        if reason == self._last_reason:
            return
        self._last_reason = reason
        # Without an authorizer in the source there is nothing to copy. In the other cases topics in
        # the target lack the protection that they have in the source.
        is_expected = cluster == self._flow.source and error.code is not ErrorCode.CLUSTER_AUTHORIZATION_FAILED
        logger.log(
            logging.INFO if is_expected else logging.WARNING,
            "%s: the ACLs of topics are not synced: %s (sync.topic.acls.enabled = false disables this)",
            self._flow.name,
            reason,
        )


def target_bindings(flow: Flow, bindings: Iterable[AclBinding]) -> list[AclBinding]:
    """Return the ACLs of the target for ACLs of the source. An ACL of all topics (`*`) is not
    copied: it would apply to topics that are not mirrored."""
    targets = []
    for pattern, acl in bindings:
        if pattern.resource_type is not ResourceType.TOPIC or pattern.pattern_type is not PatternType.LITERAL:
            continue
        if pattern.name == WILDCARD or not flow.mirrors(pattern.name):
            continue
        if acl.permission is Permission.ALLOW:
            if acl.operation is Operation.WRITE:
                continue
            if acl.operation is Operation.ALL:
                acl = acl._replace(operation=Operation.READ)
        targets.append(AclBinding(pattern._replace(name=flow.remote_topic(pattern.name)), acl))
    return list(dict.fromkeys(targets))
