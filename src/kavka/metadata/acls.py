"""The ACLs of a cluster: the znodes under /kafka-acl and /kafka-acl-extended, cached in an
`AclTable`.

A change reads the znode of a resource pattern and writes it if its version is still the same.
Otherwise another broker has changed the znode, and the change is computed again. The znode is
deleted with its last ACL. The same transaction creates a notification, so that a crash cannot leave
a change that other brokers do not learn of. Every broker watches the notifications and reads the
changed znodes. The broker that handles the request applies the change before it responds.

The table is set only directly after a read returns, without another await in between. Reads return
in the order in which they were sent, so an older state never replaces a newer one.

An ACL that cannot be parsed is an error at startup: ignoring it could permit what it denies. A
change to such data is logged, and the last valid ACLs stay in effect.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from itertools import islice

from kavka.common.clock import Clock, SystemClock
from kavka.metadata import paths
from kavka.metadata.notifications import NotificationFollower
from kavka.metadata.store import (
    BadVersion,
    Create,
    Delete,
    MetadataStore,
    NodeExists,
    NoNode,
    Op,
    SetData,
    StoreError,
    StoreUnavailable,
    check_path,
)
from kavka.security.acls import (
    NO_ACLS,
    PATTERN_TYPES,
    RESOURCE_TYPES,
    Acl,
    AclBinding,
    AclFilter,
    Acls,
    PatternType,
    ResourcePattern,
)
from kavka.security.authorizer import AclTable

logger = logging.getLogger(__name__)

# The number of patterns that one transaction changes.
MAX_PATTERNS_PER_WRITE = 100
# The number of patterns that are compared with a filter in one iteration of the event loop.
MAX_MATCHES_PER_ITERATION = 2000

# Returns the new entries of a pattern.
Change = Callable[[ResourcePattern, Acls], Acls]


class StoredAcls:
    """Owns the ACLs in the tree, and the table of them. Only the event loop may call the
    methods."""

    def __init__(self, store: MetadataStore, clock: Clock | None = None) -> None:
        self.table = AclTable()
        self._store = store
        self._followers = [
            NotificationFollower(
                store,
                paths.acl_changes(pattern_type),
                paths.ACL_CHANGE_PREFIX,
                partial(self._on_change, pattern_type),
                clock or SystemClock(),
            )
            for pattern_type in PATTERN_TYPES
        ]
        # Serializes the changes of this broker, so that they conflict only with other brokers.
        self._changing = asyncio.Lock()

    async def start(self) -> None:
        """Create the paths, read all ACLs and watch for changes. Raises StoreError."""
        for pattern_type in PATTERN_TYPES:
            await self._store.ensure(paths.acl_changes(pattern_type))
            for resource_type in RESOURCE_TYPES:
                await self._store.ensure(paths.acls_folder(pattern_type, resource_type))
        for follower in self._followers:
            await follower.start()
        try:
            await self._read_all()
        except paths.MalformedNode as error:
            raise StoreError(paths.ACLS, str(error)) from error

    async def _read_all(self) -> None:
        for pattern_type in PATTERN_TYPES:
            for resource_type in RESOURCE_TYPES:
                names = await self._store.children(paths.acls_folder(pattern_type, resource_type))
                await asyncio.gather(
                    *(self._read(ResourcePattern(resource_type, name, pattern_type)) for name in names)
                )

    async def stop(self) -> None:
        for follower in self._followers:
            await follower.stop()

    async def create(self, bindings: Sequence[AclBinding]) -> list[StoreError | ValueError | None]:
        """Add ACLs. Returns the error of each binding, or None."""
        added: dict[ResourcePattern, set[Acl]] = {}
        for binding in bindings:
            added.setdefault(binding.pattern, set()).add(binding.acl)
        errors = await self._change(added, lambda pattern, acls: acls | added[pattern])
        return [errors.get(binding.pattern) for binding in bindings]

    async def delete(self, filters: Sequence[AclFilter]) -> list[list[tuple[AclBinding, StoreError | None]]]:
        """Remove the ACLs that match a filter. Returns the removed bindings of each filter with
        their errors, or None. A binding that several filters match is in the result of the first of
        them."""
        results: list[list[tuple[AclBinding, StoreError | None]]] = [[] for _ in filters]
        positions = await self._matching(filters)
        removed: dict[ResourcePattern, set[Acl]] = {}
        for binding in positions:
            removed.setdefault(binding.pattern, set()).add(binding.acl)
        errors = await self._change(removed, lambda pattern, acls: acls - removed[pattern])
        for binding, position in positions.items():
            error = errors.get(binding.pattern)
            results[position].append((binding, error if isinstance(error, StoreError) else None))
        return results

    async def _matching(self, filters: Sequence[AclFilter]) -> dict[AclBinding, int]:
        """Return the bindings that match, with the position of the first filter that matches."""
        positions: dict[AclBinding, int] = {}
        compared = 0
        for position, acl_filter in enumerate(filters):
            for binding in self.table.bindings(acl_filter):
                positions.setdefault(binding, position)
            compared += 1 if acl_filter.pattern.exact_patterns() is not None else len(self.table.patterns)
            if compared > MAX_MATCHES_PER_ITERATION:
                compared = 0
                await asyncio.sleep(0)
        return positions

    async def _change(
        self, patterns: Iterable[ResourcePattern], change: Change
    ) -> dict[ResourcePattern, StoreError | ValueError]:
        """Change the entries of patterns. Returns the errors of those that were not changed."""
        errors: dict[ResourcePattern, StoreError | ValueError] = {}
        valid: list[ResourcePattern] = []
        for pattern in patterns:
            try:
                check_path(paths.acls(pattern))
                valid.append(pattern)
            except ValueError as error:
                errors[pattern] = error
        remaining = iter(valid)
        async with self._changing:
            while batch := list(islice(remaining, MAX_PATTERNS_PER_WRITE)):
                try:
                    await self._write(batch, change)
                except StoreUnavailable as error:
                    errors.update(dict.fromkeys(batch, error))
                except StoreError:
                    # One pattern may be too large for a znode: write the patterns individually.
                    for pattern in batch:
                        try:
                            await self._write([pattern], change)
                        except StoreError as error:
                            errors[pattern] = error
        return errors

    async def _write(self, patterns: list[ResourcePattern], change: Change) -> None:
        """Write the patterns in one transaction, and apply them. Every failed attempt means that a
        change of another broker succeeded, so the number of attempts has no limit."""
        while True:
            ops: list[Op] = []
            for pattern, (current, version) in zip(
                patterns, await asyncio.gather(*map(self._get, patterns)), strict=True
            ):
                ops += _write_ops(pattern, current, change(pattern, current), version)
            try:
                if ops:
                    await self._store.multi(ops)
            except (BadVersion, NoNode, NodeExists) as error:
                logger.info("Another broker changed %s at the same time: retrying", error.path)
                continue
            await asyncio.gather(*map(self._read, patterns))
            return

    async def _get(self, pattern: ResourcePattern) -> tuple[Acls, int | None]:
        """Return the entries of a pattern and the version of its znode, None if there is no
        znode."""
        try:
            data, stat = await self._store.get(paths.acls(pattern))
        except NoNode:
            return NO_ACLS, None
        try:
            return paths.decode_acls(pattern, data), stat.version
        except paths.MalformedNode as error:
            raise StoreError(paths.acls(pattern), str(error)) from error

    async def _read(self, pattern: ResourcePattern) -> None:
        """Set the entries of a pattern in the table to those in the tree."""
        try:
            data = (await self._store.get(paths.acls(pattern)))[0]
        except NoNode:
            self.table.replace(pattern, NO_ACLS)
        else:
            self.table.replace(pattern, paths.decode_acls(pattern, data))

    async def _on_change(self, pattern_type: PatternType, data: bytes | None) -> None:
        await self._read(paths.decode_acl_change(pattern_type, data))


def _write_ops(pattern: ResourcePattern, current: Acls, acls: Acls, version: int | None) -> list[Op]:
    """Return the operations that replace the znode, if it has `version`, and notify the brokers."""
    if acls == current and (acls or version is None):
        return []
    path = paths.acls(pattern)
    notification = f"{paths.acl_changes(pattern.pattern_type)}/{paths.ACL_CHANGE_PREFIX}"
    notify = Create(notification, paths.encode_acl_change(pattern), sequential=True)
    if not acls:
        return [Delete(path, version or 0), notify]
    data = paths.encode_acls(acls)
    return [Create(path, data) if version is None else SetData(path, data, version), notify]
