"""Delegation tokens in the tree: Kafka's JSON, notifications between brokers, expiry."""

from __future__ import annotations

import asyncio
import json
from base64 import b64encode
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from kavka.metadata.delegation_tokens import CHANGES, TOKENS, DelegationTokens
from kavka.metadata.embedded import EmbeddedStore
from kavka.metadata.store import MetadataStore, NoNode
from kavka.security.delegation_tokens import TokenFormatError, parse_token, token_password
from kavka.security.principal import Principal
from kavka.security.sasl.scram import ScramClient, ScramServer
from tests.support.logs import FakeClock

ALICE, BOB, EVE = (Principal("User", name) for name in ("alice", "bob", "eve"))


def in_cluster(
    tmp_path: Path, body: Callable[[DelegationTokens, DelegationTokens, MetadataStore, FakeClock], Awaitable[None]]
) -> None:
    """Run with the tokens of two brokers over one tree."""

    async def scenario() -> None:
        clock = FakeClock()
        store = EmbeddedStore.open(tmp_path / "metadata.db")
        first, second = (DelegationTokens(store, "secret", clock, 7000, 1000, 0.01) for _ in range(2))
        await first.start()
        await second.start()
        try:
            await body(first, second, store, clock)
        finally:
            await first.stop()
            await second.stop()
            await store.close()

    asyncio.run(scenario())


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(5):
        while not condition():
            await asyncio.sleep(0.005)


def test_another_broker_accepts_the_token(tmp_path: Path) -> None:
    async def body(first: DelegationTokens, second: DelegationTokens, store: MetadataStore, clock: FakeClock) -> None:
        token = await first.create(ALICE, ALICE, (BOB,), -1)
        assert (token.max_at_ms - clock.ms, token.expires_at_ms - clock.ms) == (7000, 1000)
        await until(lambda: bool(second.all()))
        data, _ = await store.get(f"{TOKENS}/{token.id}")
        assert json.loads(data or b"") == {
            "version": 3, "owner": "User:alice", "tokenRequester": "User:alice", "renewers": ["User:bob"],
            "issueTimestamp": clock.ms, "maxTimestamp": clock.ms + 7000, "expiryTimestamp": clock.ms + 1000,
            "tokenId": token.id,
        }  # fmt: skip
        [change] = await store.children(CHANGES)
        assert (await store.get(f"{CHANGES}/{change}"))[0] == token.id.encode()
        password = b64encode(first.hmac_of(token)).decode()
        assert password == token_password("secret", token.id)
        server = ScramServer("SCRAM-SHA-256", {}.get, second.lookup("SCRAM-SHA-256"))
        client = ScramClient("SCRAM-SHA-256", token.id, password, {"tokenauth": "true"})
        final = client.respond(server.respond(client.initial()))
        assert final is not None
        client.respond(server.respond(final))
        assert server.identity is not None
        assert (server.identity.name, server.identity.expires_at_ms) == ("alice", token.expires_at_ms)

    in_cluster(tmp_path, body)


def test_renewal_removal_and_expiry(tmp_path: Path) -> None:
    async def body(first: DelegationTokens, second: DelegationTokens, store: MetadataStore, clock: FakeClock) -> None:
        token = await first.create(ALICE, ALICE, (), 5000)
        await until(lambda: bool(second.all()))
        assert (await first.renew(token, 100_000)).expires_at_ms == clock.ms + 5000
        await until(lambda: second.all()[0].expires_at_ms == clock.ms + 5000)
        assert first.by_hmac(first.hmac_of(token)) is not None and first.by_hmac(b"x") is None
        await second.remove(token)
        await until(lambda: not first.all())
        with pytest.raises(NoNode):
            await first.renew(token, 1)
        expiring = await first.create(ALICE, ALICE, (), -1)
        await until(lambda: bool(second.all()))
        clock.advance(1001)
        assert second.lookup("SCRAM-SHA-512")(expiring.id) is None and not first.all()
        async with asyncio.timeout(5):
            while await store.children(TOKENS):
                await asyncio.sleep(0.005)

    in_cluster(tmp_path, body)


def test_owner_and_renewers_may_change_a_token(tmp_path: Path) -> None:
    async def body(first: DelegationTokens, second: DelegationTokens, store: MetadataStore, clock: FakeClock) -> None:
        token = await first.create(ALICE, ALICE, (BOB,), -1)
        assert [token.belongs_to(principal) for principal in (ALICE, BOB, EVE)] == [True, True, False]

    in_cluster(tmp_path, body)


@pytest.mark.parametrize("data", [None, b"", b"{}", b"[]", b"null", b'{"tokenId":"a","owner":"alice"}', b"\xff"])
def test_malformed_tokens(data: bytes | None) -> None:
    with pytest.raises(TokenFormatError):
        parse_token(data)
