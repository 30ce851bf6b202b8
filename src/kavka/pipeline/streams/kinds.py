"""Which class keeps which kind of store."""

from __future__ import annotations

from collections.abc import Callable

from kavka.pipeline.streams.serdes import Serde
from kavka.pipeline.streams.state_map import OpenMap
from kavka.pipeline.streams.stores import (
    BUFFER,
    KEY_VALUE,
    SESSION,
    SUBSCRIPTIONS,
    VERSIONED,
    WINDOW,
    BufferStore,
    KeyValueStore,
    SessionStore,
    Store,
    StoreBuilder,
    WindowStore,
)
from kavka.pipeline.streams.versioned import SubscriptionStore, VersionedStore

KINDS: dict[str, Callable[[StoreBuilder, Serde, Serde, OpenMap], Store]] = {
    KEY_VALUE: KeyValueStore,
    WINDOW: WindowStore,
    SESSION: SessionStore,
    BUFFER: BufferStore,
    SUBSCRIPTIONS: SubscriptionStore,
    VERSIONED: VersionedStore,
}
