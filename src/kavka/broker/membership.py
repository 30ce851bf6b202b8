"""The registration of this broker in the cluster.

The registration is an ephemeral znode. After a kill the znode remains until its session expires,
and a broker that restarts earlier would have to wait. The restarted broker holds the lock of its
log directories, so the previous process is dead. If the znode belongs to the session that the
previous process recorded in the log directory, the broker removes the znode at once.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from kavka.metadata import paths
from kavka.metadata.cluster import register_broker
from kavka.metadata.features import Features
from kavka.metadata.paths import BrokerRegistration, MalformedNode
from kavka.metadata.store import Delete, MetadataStore, NodeExists, NoNode, StoreError, StoreUnavailable, WatchEvent
from kavka.storage.files import atomic_write

logger = logging.getLogger(__name__)

SESSION_FILE = ".kavka-session"
RETRY_INTERVAL_S = 0.5
NOT_REGISTERED = -1


class AlreadyRegistered(StoreError):
    meaning = "another broker with this id is registered; each broker of a cluster needs a unique broker.id"


class Membership:
    """Owns the registration of this broker. Updates `features` when the registered brokers or the
    levels in /feature change.

    `epoch` is the czxid of the znode, which identifies the registration. The session id is stored
    in a file in `session_dir`. After a crash the file and the znode remain; the next start removes
    the znode.
    """

    def __init__(
        self,
        store: MetadataStore,
        broker_id: int,
        registration: Callable[[], BrokerRegistration],
        features: Features,
        session_dir: Path,
        max_wait_s: float,
    ) -> None:
        self.epoch = NOT_REGISTERED
        self._store = store
        self._broker_id = broker_id
        self._registration = registration
        self._features = features
        self._session_file = session_dir / SESSION_FILE
        self._max_wait_s = max_wait_s
        self._register_task: asyncio.Task[None] | None = None
        self._features_task: asyncio.Task[None] | None = None
        self._must_read_again = False

    async def register(self) -> None:
        """Create the znode. Waits up to `max_wait_s` for an earlier session that owns the znode to
        expire, then raises AlreadyRegistered."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._max_wait_s
        has_waited = False
        while True:
            await self._remove_stale_nodes()
            try:
                self.epoch = await register_broker(self._store, self._registration())
                break
            except NodeExists:
                path = paths.broker(self._broker_id)
                if loop.time() >= deadline:
                    raise AlreadyRegistered(path) from None
                if not has_waited:
                    logger.info(
                        "Broker %d is still registered by an earlier session; waiting for it to expire", self._broker_id
                    )
                    has_waited = True
                await self._wait_for_deletion(path)
        self._record_session()
        logger.info("Registered as broker %d with epoch %d", self._broker_id, self.epoch)
        await self._read_features()

    async def _wait_for_deletion(self, path: str) -> None:
        changed = asyncio.Event()
        if await self._store.exists(path, lambda _: changed.set()) is None:
            return
        with suppress(TimeoutError):
            await asyncio.wait_for(changed.wait(), RETRY_INTERVAL_S)

    async def _remove_stale_nodes(self) -> None:
        """Remove the registration of the previous process on these log directories and, if that
        process was the controller, the controller's znode."""
        session = self._recorded_session()
        if session is None or session == self._store.session_id:
            return
        for path in (paths.broker(self._broker_id), paths.CONTROLLER):
            stat = await self._store.exists(path)
            if stat is not None and stat.ephemeral_owner == session:
                with suppress(NoNode, StoreError):
                    await self._store.multi([Delete(path, stat.version)])

    def _recorded_session(self) -> int | None:
        try:
            return int(self._session_file.read_text())
        except (OSError, ValueError):
            return None

    def _record_session(self) -> None:
        # Without the file, the next start only has to wait until the session expires.
        with suppress(OSError):
            atomic_write(self._session_file, f"{self._store.session_id}\n".encode())

    # ---- after the session expired

    def register_again(self) -> None:
        """Register in a new session. Retries until it succeeds."""
        if self._register_task is not None:
            self._register_task.cancel()
        self._register_task = asyncio.ensure_future(self._retry_registration())

    async def _retry_registration(self) -> None:
        while True:
            try:
                await self.register()
                return
            except StoreError as error:
                logger.error("Cannot register the broker in the new session: %s", error)
                await asyncio.sleep(RETRY_INTERVAL_S)

    # ---- features, which depend on all brokers

    def _on_change(self, _event: WatchEvent) -> None:
        if self._features_task is not None and not self._features_task.done():
            self._must_read_again = True
        else:
            self._features_task = asyncio.ensure_future(self._update_features())

    async def _update_features(self) -> None:
        while True:
            self._must_read_again = False
            try:
                await self._read_features()
            except StoreUnavailable:
                return  # `register` reads the features again in the next session
            if not self._must_read_again:
                return

    async def _read_features(self) -> None:
        """Read the features of all brokers. The feature epoch is the zxid of the last change of the
        broker list or of /feature, which is the same on every broker."""
        brokers: list[BrokerRegistration] = []
        names = await self._store.children(paths.BROKER_IDS, self._on_change)
        stat = await self._store.exists(paths.BROKER_IDS)
        epoch = self.epoch if stat is None else stat.pzxid
        limits, limits_zxid = await self._feature_limits()
        for name in names:
            try:
                data, _ = await self._store.get(paths.broker(int(name)))
                brokers.append(BrokerRegistration.decode(int(name), data))
            except (NoNode, MalformedNode, ValueError) as error:
                logger.warning("Ignoring the features of broker %s: %s", name, error)
        self._features.set_brokers(brokers, max(epoch, limits_zxid), limits)

    async def _feature_limits(self) -> tuple[dict[str, int], int]:
        """Return the maximum levels that an administrator has set in /feature, and the zxid of
        their last change. The znode is missing until the first controller creates it."""
        if await self._store.exists(paths.FEATURE, self._on_change) is None:
            return {}, -1
        try:
            data, stat = await self._store.get(paths.FEATURE)
            return paths.decode_feature_levels(data), stat.mzxid
        except NoNode:
            return {}, -1
        except MalformedNode as error:
            logger.error("Ignoring the feature levels: %s", error)
            return {}, -1

    async def close(self) -> None:
        tasks = [task for task in (self._register_task, self._features_task) if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
