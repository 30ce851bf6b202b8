"""The admin client for asyncio."""

from __future__ import annotations

from collections.abc import Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, Unpack

from kavka.client.admin.acls import Acls
from kavka.client.admin.hanging import Hanging
from kavka.client.admin.log_dirs import LogDirs
from kavka.client.admin.quotas import Quotas
from kavka.client.admin.replicas import Replicas
from kavka.client.admin.resets import Resets
from kavka.client.admin.throttles import Throttles
from kavka.client.admin.tokens import Tokens
from kavka.client.admin.users import Users
from kavka.client.admin_config import admin_config
from kavka.client.dropped import close_on_loop
from kavka.client.io_thread import warn_unclosed

if TYPE_CHECKING:
    from kavka.client.settings import AdminSettings


class Admin(Resets, Hanging, Throttles, LogDirs, Replicas, Quotas, Users, Acls, Tokens):
    """Manages a cluster: topics, settings, groups, offsets, replicas, quotas, users, ACLs.

        async with Admin(bootstrap_servers="localhost:9092") as admin:
            await admin.create_topics([NewTopic("orders", 3)])

    A call for several items returns a result for each item. If some items fail, the call raises
    AdminError with the `results` of the other items and the `errors`. `timeout` is in seconds;
    without it, `default.api.timeout.ms` applies.
    """

    def __init__(self, config: Mapping[str, Any] | None = None, **keywords: Unpack[AdminSettings]) -> None:
        super().__init__(admin_config(config, keywords))

    def __del__(self) -> None:
        cluster = getattr(self, "cluster", None)
        if cluster is not None and cluster.started and not cluster.closed:
            close_on_loop(cluster.loop, cluster.close)
            warn_unclosed(self, cluster.client_id)

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()
