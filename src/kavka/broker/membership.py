"""This broker's place in the cluster: signed in for as long as its session with the store lasts, and again after.

Who is signed in is known by an ephemeral node, which outlives a killed process until its session is over. A broker that
is started again before that would have to wait. But it holds the lock of its log directories, so whoever had them
before is dead; and if the node is of the session that is noted there, it is that one's, and can be removed at once.
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

log = logging.getLogger(__name__)

SESSION_FILE = ".kavka-session"
RETRY_S = 0.5
NOT_SIGNED_IN = -1


class AlreadySignedIn(StoreError):
    meaning = "another broker with this id is signed in; each broker of a cluster needs a broker.id of its own"


class Membership:
    """`epoch` is that of the registration (the czxid of its node): it tells one life of a broker from the next."""

    def __init__(
        self,
        store: MetadataStore,
        broker_id: int,
        describe: Callable[[], BrokerRegistration],
        features: Features,
        noted_in: Path,
        wait_s: float,
    ) -> None:
        self.epoch = NOT_SIGNED_IN
        self._store = store
        self._broker_id = broker_id
        self._describe = describe
        self._features = features
        self._note = noted_in / SESSION_FILE
        self._wait_s = wait_s
        self._signing_in: asyncio.Task[None] | None = None
        self._following: asyncio.Task[None] | None = None
        self._follow_again = False

    async def sign_in(self) -> None:
        """Waits for the node of an earlier session to go, for as long as that can last."""
        loop = asyncio.get_running_loop()
        end = loop.time() + self._wait_s
        waited = False
        while True:
            await self._remove_own_remains()
            try:
                self.epoch = await register_broker(self._store, self._describe())
                break
            except NodeExists:
                path = paths.broker(self._broker_id)
                if loop.time() >= end:
                    raise AlreadySignedIn(path) from None
                if not waited:
                    log.info("Broker %d is still signed in from before; waiting for that to end", self._broker_id)
                    waited = True
                await self._until_gone(path)
        self._note_session()
        log.info("Signed in as broker %d, with epoch %d", self._broker_id, self.epoch)
        await self._read_features()

    async def _until_gone(self, path: str) -> None:
        gone = asyncio.Event()
        if await self._store.exists(path, lambda _: gone.set()) is None:
            return
        with suppress(TimeoutError):
            await asyncio.wait_for(gone.wait(), RETRY_S)

    async def _remove_own_remains(self) -> None:
        """What the last process on these log directories left in the tree: its registration and, if it was that, the
        controller's node."""
        session = self._noted_session()
        if session is None or session == self._store.session_id:
            return
        for path in (paths.broker(self._broker_id), paths.CONTROLLER):
            stat = await self._store.exists(path)
            if stat is not None and stat.ephemeral_owner == session:
                with suppress(NoNode, StoreError):
                    await self._store.multi([Delete(path, stat.version)])

    def _noted_session(self) -> int | None:
        try:
            return int(self._note.read_text())
        except (OSError, ValueError):
            return None

    def _note_session(self) -> None:
        # Without the note the next start waits for the session to end, no more.
        with suppress(OSError):
            atomic_write(self._note, f"{self._store.session_id}\n".encode())

    # ---- after the session was lost

    def sign_in_again(self) -> None:
        """A new session is there: sign in, however long it takes."""
        if self._signing_in is not None:
            self._signing_in.cancel()
        self._signing_in = asyncio.ensure_future(self._sign_in_again())

    async def _sign_in_again(self) -> None:
        while True:
            try:
                await self.sign_in()
                return
            except StoreError as error:
                log.error("Cannot sign in again: %s", error)
                await asyncio.sleep(RETRY_S)

    # ---- features, which depend on all brokers

    def _changed(self, _event: WatchEvent) -> None:
        if self._following is not None and not self._following.done():
            self._follow_again = True
        else:
            self._following = asyncio.ensure_future(self._follow())

    async def _follow(self) -> None:
        while True:
            self._follow_again = False
            try:
                await self._read_features()
            except StoreUnavailable:
                return  # with the next session they are read again
            if not self._follow_again:
                return

    async def _read_features(self) -> None:
        """Their epoch is the number of the last change, of the list of brokers or of what is set for all: every broker
        sees it alike."""
        brokers: list[BrokerRegistration] = []
        names = await self._store.children(paths.BROKER_IDS, self._changed)
        stat = await self._store.exists(paths.BROKER_IDS)
        epoch = self.epoch if stat is None else stat.pzxid
        limits, set_at = await self._feature_limits()
        for name in names:
            try:
                data, _ = await self._store.get(paths.broker(int(name)))
                brokers.append(BrokerRegistration.decode(int(name), data))
            except (NoNode, MalformedNode, ValueError) as error:
                log.warning("Broker %s is left out of the features: %s", name, error)
        self._features.set_brokers(brokers, max(epoch, set_at), limits)

    async def _feature_limits(self) -> tuple[dict[str, int], int]:
        """What is set in /feature, and the number of the change that did it. It is missing before the first controller
        has made it."""
        if await self._store.exists(paths.FEATURE, self._changed) is None:
            return {}, -1
        try:
            data, stat = await self._store.get(paths.FEATURE)
            return paths.decode_feature_levels(data), stat.mzxid
        except NoNode:
            return {}, -1
        except MalformedNode as error:
            log.error("No levels of features are set: %s", error)
            return {}, -1

    async def close(self) -> None:
        tasks = [task for task in (self._signing_in, self._following) if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
