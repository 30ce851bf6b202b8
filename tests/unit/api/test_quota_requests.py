"""DescribeClientQuotas and AlterClientQuotas: Kafka's validation and matching."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from kavka.common.errors import ErrorCode
from kavka.protocol.messages.alter_client_quotas import (
    AlterClientQuotasRequest,
    AlterClientQuotasRequestEntryData,
    EntityData,
    OpData,
)
from kavka.protocol.messages.describe_client_quotas import ComponentData, DescribeClientQuotasRequest
from tests.unit.api.support import Client, with_client

Entity = dict[str, str | None]
EXACT, DEFAULT, ANY = 0, 1, 2


def run(folder: Path, body: Callable[[Client], Awaitable[None]]) -> None:
    async def scenario(client: Client) -> None:
        async def run_in_worker(function: Callable[..., Any], *args: Any) -> Any:
            return await asyncio.to_thread(function, *args)

        client.broker.run_in_worker = run_in_worker  # type: ignore[attr-defined]
        await body(client)

    with_client(folder, scenario)


async def alter(client: Client, entity: Entity, *, validate_only: bool = False, **ops: float | None) -> tuple[int, str]:
    request = AlterClientQuotasRequest(
        entries=[
            AlterClientQuotasRequestEntryData(
                entity=[EntityData(entity_type=kind, entity_name=name) for kind, name in entity.items()],
                ops=[OpData(key=key, value=value or 0.0, remove=value is None) for key, value in ops.items()],
            )
        ],
        validate_only=validate_only,
    )
    [entry] = (await client.send(request, 1)).entries
    assert {part.entity_type: part.entity_name for part in entry.entity} == entity
    return entry.error_code, entry.error_message


async def describe(client: Client, *components: tuple[str, int, str | None], strict: bool = False) -> Any:
    """Return the sorted entities, or the error code."""
    request = DescribeClientQuotasRequest(
        components=[ComponentData(entity_type=kind, match_type=how, match=name) for kind, how, name in components],
        strict=strict,
    )
    response = await client.send(request, 1)
    if response.error_code:
        assert response.entries is None
        return response.error_code
    return sorted(
        ",".join(f"{part.entity_type}={part.entity_name or '*'}" for part in entry.entity) for entry in response.entries
    )


ENTITIES: tuple[Entity, ...] = (
    {"user": "alice"},
    {"user": None},
    {"client-id": "app"},
    {"client-id": None},
    {"user": "alice", "client-id": "app"},
    {"user": "alice", "client-id": None},
    {"user": None, "client-id": "app"},
    {"ip": "10.0.0.1"},
    {"ip": None},
)

FILTERS: tuple[tuple[tuple[tuple[str, int, str | None], ...], bool, list[str]], ...] = (
    ((), True, []),
    ((("user", EXACT, "alice"),), False, ["user=alice", "user=alice,client-id=*", "user=alice,client-id=app"]),
    ((("user", EXACT, "alice"),), True, ["user=alice"]),
    ((("user", DEFAULT, None),), True, ["user=*"]),
    ((("user", DEFAULT, None),), False, ["user=*", "user=*,client-id=app"]),
    ((("user", ANY, None),), True, ["user=*", "user=alice"]),
    ((("client-id", ANY, None),), True, ["client-id=*", "client-id=app"]),
    ((("client-id", EXACT, "app"),), False, ["client-id=app", "user=*,client-id=app", "user=alice,client-id=app"]),
    (
        (("user", ANY, None), ("client-id", ANY, None)),
        True,
        ["user=*,client-id=app", "user=alice,client-id=*", "user=alice,client-id=app"],
    ),
    ((("user", EXACT, "alice"), ("client-id", DEFAULT, None)), True, ["user=alice,client-id=*"]),
    ((("user", EXACT, "bob"),), False, []),
    ((("ip", ANY, None),), True, ["ip=*", "ip=10.0.0.1"]),
    ((("ip", EXACT, "10.0.0.1"),), False, ["ip=10.0.0.1"]),
)


def test_filters_match_as_in_kafka(tmp_path: Path) -> None:
    async def body(client: Client) -> None:
        for entity in ENTITIES:
            ops = {"connection_creation_rate": 5.0} if "ip" in entity else {"producer_byte_rate": 5.0}
            assert await alter(client, entity, **ops) == (0, None)
        assert len(await describe(client)) == len(ENTITIES)
        for components, strict, expected in FILTERS:
            assert await describe(client, *components, strict=strict) == expected, components

    run(tmp_path, body)


@pytest.mark.parametrize(
    ("components", "code"),
    [
        ([("user", EXACT, "a"), ("user", EXACT, "b")], ErrorCode.INVALID_REQUEST),
        ([("user", EXACT, "a"), ("ip", ANY, None)], ErrorCode.INVALID_REQUEST),
        ([("", EXACT, "a")], ErrorCode.INVALID_REQUEST),
        ([("team", EXACT, "a")], ErrorCode.UNSUPPORTED_VERSION),
        ([("user", 3, "a")], ErrorCode.INVALID_REQUEST),
        ([("user", EXACT, None)], ErrorCode.INVALID_REQUEST),
    ],
)
def test_invalid_filters_are_refused(tmp_path: Path, components: Any, code: ErrorCode) -> None:
    async def body(client: Client) -> None:
        assert await describe(client, *components) == code

    run(tmp_path, body)


@pytest.mark.parametrize(
    ("entity", "ops", "message"),
    [
        ({}, {"producer_byte_rate": 1.0}, "Invalid empty client quota entity"),
        ({"team": "a"}, {"producer_byte_rate": 1.0}, "Unhandled client quota entity type: team"),
        ({"user": ""}, {"producer_byte_rate": 1.0}, "Empty user not supported"),
        ({"user": "a", "ip": "10.0.0.1"}, {"connection_creation_rate": 1.0}, "Invalid quota entity combination"),
        ({"user": "a"}, {"connection_creation_rate": 1.0}, "Invalid configuration key connection_creation_rate"),
        ({"ip": "10.0.0.1"}, {"producer_byte_rate": 1.0}, "Invalid configuration key producer_byte_rate"),
        ({"user": "a"}, {"SCRAM-SHA-256": 1.0}, "Invalid configuration key SCRAM-SHA-256"),
        ({"user": "a"}, {"producer_byte_rate": 1.5}, "Configuration producer_byte_rate must be a LONG value"),
        ({"user": "a"}, {"producer_byte_rate": -5.0}, "Configuration producer_byte_rate must be a LONG value"),
        ({"user": "a"}, {"producer_byte_rate": float("nan")}, "Configuration producer_byte_rate must be a number"),
        ({"user": "a"}, {"request_percentage": float("inf")}, "Configuration request_percentage must be a number"),
        ({"ip": "no such host"}, {"connection_creation_rate": 1.0}, "no such host is not a valid IP"),
        ({"ip": "10.0.0.1"}, {"connection_creation_rate": 0.5}, "Configuration connection_creation_rate must be a INT"),
    ],
)
def test_invalid_changes_are_refused(tmp_path: Path, entity: Entity, ops: Any, message: str) -> None:
    async def body(client: Client) -> None:
        code, text = await alter(client, entity, **ops)
        assert code == ErrorCode.INVALID_REQUEST
        assert text.startswith(message)
        assert await describe(client) == []
        assert await client.broker.store.children("/config/changes") == []

    run(tmp_path, body)


def test_changes_are_stored_as_kafka_does(tmp_path: Path) -> None:
    async def body(client: Client) -> None:
        store = client.broker.store
        ops = {"producer_byte_rate": 1e6, "request_percentage": 1e7, "controller_mutation_rate": 0.5}
        assert await alter(client, {"user": "a/*", "client-id": ".."}, **ops) == (0, None)
        data, _ = await store.get("/config/users/a%2F%2A/clients/%2E%2E")
        assert data == (
            b'{"version":1,"config":{"producer_byte_rate":"1000000","request_percentage":"1.0E7",'
            b'"controller_mutation_rate":"0.5"}}'
        )
        assert await describe(client) == ["user=a/*,client-id=.."]
        assert await alter(client, {"user": "b"}, validate_only=True, **ops) == (0, None)
        assert await describe(client) == ["user=a/*,client-id=.."]
        # Without quotas, the node and its empty parents are removed.
        assert await alter(client, {"user": "a/*", "client-id": ".."}, **dict.fromkeys(ops)) == (0, None)
        assert await store.children("/config/users") == []
        # Removing what does not exist is not an error.
        assert await alter(client, {"user": "nobody"}, producer_byte_rate=None) == (0, None)

    run(tmp_path, body)


def test_other_settings_and_children_of_a_user_stay(tmp_path: Path) -> None:
    async def body(client: Client) -> None:
        store = client.broker.store
        credentials = b'{"version":1,"config":{"SCRAM-SHA-512":"salt=x"}}'
        await store.create("/config/users/alice", credentials)
        await alter(client, {"user": "alice"}, producer_byte_rate=5.0)
        await alter(client, {"user": "alice", "client-id": "app"}, producer_byte_rate=6.0)
        await alter(client, {"user": "alice"}, producer_byte_rate=None, **{"SCRAM-SHA-512": None})
        assert (await store.get("/config/users/alice"))[0] == credentials
        await alter(client, {"user": "alice", "client-id": "app"}, producer_byte_rate=None)
        assert (await store.get("/config/users/alice"))[0] == credentials
        assert await store.children("/config/users/alice") == []
        await alter(client, {"user": "bob", "client-id": "app"}, producer_byte_rate=6.0)
        await alter(client, {"user": "bob"}, producer_byte_rate=5.0)
        await alter(client, {"user": "bob"}, producer_byte_rate=None)
        assert await describe(client) == ["user=bob,client-id=app"]

    run(tmp_path, body)


def test_malformed_nodes_of_others_are_ignored(tmp_path: Path) -> None:
    async def body(client: Client) -> None:
        store = client.broker.store
        await store.create("/config/clients/broken", b"{")
        await store.create("/config/clients/text", b'{"version":1,"config":{"producer_byte_rate":"ten"}}')
        await store.create("/config/clients/good", b'{"version":1,"config":{"producer_byte_rate":"10"}}')
        for path in ("clients/broken", "clients/text", "clients/good", "clients/a/b", "users/../x", "ips"):
            await store.create("/config/changes/config_change_", _notification(path), sequential=True)
        assert await describe(client) == ["client-id=good"]

    run(tmp_path, body)


def _notification(path: str) -> bytes:
    return b'{"version":2,"entity_path":"%s"}' % path.encode()
