"""Feature levels set by UpdateFeatures, stored in /feature.

A level in the node is the maximum level of the feature (`metadata/features.py`); 0 disables the
feature. A feature without a level in the node has the highest level that all brokers support. The
node is replaced in one write.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from kavka.common.errors import ErrorCode, KafkaError
from kavka.controller.tree import MAX_WRITE_ATTEMPTS
from kavka.metadata import paths
from kavka.metadata.features import SUPPORTED, common_levels, finalized_levels
from kavka.metadata.paths import MalformedNode
from kavka.metadata.store import BadVersion, SetData

if TYPE_CHECKING:
    from kavka.controller.term import Term

logger = logging.getLogger(__name__)

UPGRADE, SAFE_DOWNGRADE, UNSAFE_DOWNGRADE = 1, 2, 3
NOT_WRITTEN = -1


class FeatureUpdate(NamedTuple):
    name: str
    level: int
    upgrade_type: int


class FeatureUpdateResult(NamedTuple):
    """The error of each update, in order. `epoch` is the feature epoch after the write, or
    NOT_WRITTEN."""

    errors: list[KafkaError | None]
    epoch: int


class FeatureUpdates:
    """Validates and writes feature levels. Only the controller's events call it."""

    def __init__(self, term: Term) -> None:
        self._term = term

    async def update(
        self, updates: Sequence[FeatureUpdate], *, validate_only: bool, all_or_none: bool
    ) -> FeatureUpdateResult:
        """Apply the valid updates. With `all_or_none`, an invalid update prevents all updates.
        Raises FEATURE_UPDATE_FAILED if the node is changed concurrently too often."""
        store = self._term.tree.store
        for _ in range(MAX_WRITE_ATTEMPTS):
            data, stat = await store.get(paths.FEATURE)
            try:
                current = paths.decode_feature_levels(data)
            except MalformedNode as error:
                logger.error("Replacing the malformed node %s: %s", paths.FEATURE, error)
                current = {}
            levels = dict(current)
            errors = [self._apply(update, levels) for update in updates]
            is_rejected = all_or_none and any(errors)
            if validate_only or is_rejected or levels == current:
                return FeatureUpdateResult(errors, NOT_WRITTEN)
            try:
                node = paths.with_feature_levels(data, levels)
                await self._term.tree.write_all([SetData(paths.FEATURE, node, stat.version)])
            except BadVersion:
                continue
            new_stat = await store.exists(paths.FEATURE)
            logger.info("Set feature levels: %s", levels)
            return FeatureUpdateResult(errors, NOT_WRITTEN if new_stat is None else new_stat.mzxid)
        raise KafkaError(ErrorCode.FEATURE_UPDATE_FAILED, "The features were changed concurrently too often.")

    def _apply(self, update: FeatureUpdate, levels: dict[str, int]) -> KafkaError | None:
        """Add the update to `levels`, or return the error."""
        name, level, upgrade_type = update
        if not name:
            return _invalid("A feature name must not be empty.")
        if upgrade_type not in (UPGRADE, SAFE_DOWNGRADE, UNSAFE_DOWNGRADE):
            return _invalid(f"Unknown upgrade type {upgrade_type}.")
        if name not in SUPPORTED:
            return _invalid(f"There is no feature {name}.")
        brokers = self._term.context.brokers.values()
        current = finalized_levels(SUPPORTED, brokers, levels).get(name, 0)
        if level < SUPPORTED[name].lowest or level > common_levels(SUPPORTED, brokers)[name]:
            return _invalid(f"Not all brokers support level {level} of {name}.")
        if level < current and upgrade_type == UPGRADE:
            return _invalid(f"The update from level {current} to {level} of {name} is a downgrade, not an upgrade.")
        if level > current and upgrade_type != UPGRADE:
            return _invalid(f"The update from level {current} to {level} of {name} is an upgrade, not a downgrade.")
        levels[name] = level
        return None


def _invalid(message: str) -> KafkaError:
    return KafkaError(ErrorCode.INVALID_REQUEST, message)
