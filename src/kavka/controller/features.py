"""The levels of features that an administrator has set: UpdateFeatures, kept in /feature.

What is set there is the most that the brokers offer (`metadata/features.py`); 0 is off. A feature that is not named
there is offered at the highest level that all brokers have. The node is replaced as a whole, in one write.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from kavka.common.errors import ErrorCode, KafkaError
from kavka.controller.tree import ATTEMPTS
from kavka.metadata import paths
from kavka.metadata.features import SUPPORTED, common_levels, offered
from kavka.metadata.paths import MalformedNode
from kavka.metadata.store import BadVersion, SetData

if TYPE_CHECKING:
    from kavka.controller.term import Term

log = logging.getLogger(__name__)

UPGRADE, SAFE_DOWNGRADE, UNSAFE_DOWNGRADE = 1, 2, 3
NOT_WRITTEN = -1


class FeatureUpdate(NamedTuple):
    name: str
    level: int
    kind: int


class Updated(NamedTuple):
    """What became of each update, in their order; `epoch` is that of the features when all brokers know."""

    errors: list[KafkaError | None]
    epoch: int


class FeatureUpdates:
    def __init__(self, term: Term) -> None:
        self._term = term

    async def update(self, updates: Sequence[FeatureUpdate], *, validate_only: bool, all_or_none: bool) -> Updated:
        """Those that are refused leave the others to be done, or, `all_or_none`, none of them."""
        store = self._term.tree.store
        for _ in range(ATTEMPTS):
            data, stat = await store.get(paths.FEATURE)
            try:
                found = paths.decode_feature_levels(data)
            except MalformedNode as error:
                log.error("%s is written anew: %s", paths.FEATURE, error)
                found = {}
            levels = dict(found)
            errors = [self._apply(update, levels) for update in updates]
            refused = all_or_none and any(errors)
            if validate_only or refused or levels == found:
                return Updated(errors, NOT_WRITTEN)
            try:
                node = paths.with_feature_levels(data, levels)
                await self._term.tree.write_all([SetData(paths.FEATURE, node, stat.version)])
            except BadVersion:
                continue
            written = await store.exists(paths.FEATURE)
            log.info("The levels of features are set: %s", levels)
            return Updated(errors, NOT_WRITTEN if written is None else written.mzxid)
        raise KafkaError(ErrorCode.FEATURE_UPDATE_FAILED, "Somebody else changes the features all the time.")

    def _apply(self, update: FeatureUpdate, levels: dict[str, int]) -> KafkaError | None:
        """Puts it into `levels`, or says why not."""
        name, level, kind = update
        if not name:
            return _invalid("A feature has a name.")
        if kind not in (UPGRADE, SAFE_DOWNGRADE, UNSAFE_DOWNGRADE):
            return _invalid(f"There is no kind {kind} of upgrade.")
        if name not in SUPPORTED:
            return _invalid(f"There is no feature {name}.")
        brokers = self._term.context.brokers.values()
        now = offered(SUPPORTED, brokers, levels).get(name, 0)
        if level < SUPPORTED[name].lowest or level > common_levels(SUPPORTED, brokers)[name]:
            return _invalid(f"Not all brokers have level {level} of {name}.")
        if level < now and kind == UPGRADE:
            return _invalid(f"{name} is at level {now}, and {level} would be a downgrade, which was not allowed.")
        if level > now and kind != UPGRADE:
            return _invalid(f"{name} is at level {now}, and {level} would be an upgrade, not a downgrade.")
        levels[name] = level
        return None


def _invalid(message: str) -> KafkaError:
    return KafkaError(ErrorCode.INVALID_REQUEST, message)
