"""Settings of topics, brokers and groups."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from kavka.client.admin.base import AdminBase, Outcome, as_list, by_key, gather
from kavka.client.admin.types import (
    AlterConfigOp,
    ConfigEntry,
    ConfigResource,
    ConfigSource,
    ConfigSynonym,
    OpType,
    ResourceType,
)
from kavka.client.errors import error_of
from kavka.common.config import ConfigType
from kavka.protocol.messages import alter_configs, incremental_alter_configs
from kavka.protocol.messages.describe_configs import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResourceResult,
)
from kavka.protocol.messages.list_config_resources import ListConfigResourcesRequest

_ANY_BROKER = -1
# Resources that differ between brokers: the request is sent to the broker that the resource names.
_PER_BROKER = frozenset({ResourceType.BROKER, ResourceType.BROKER_LOGGER})


class Configs(AdminBase):
    async def describe_configs(
        self,
        resources: Iterable[ConfigResource] | ConfigResource,
        *,
        include_synonyms: bool = False,
        include_documentation: bool = False,
        timeout: float | None = None,
    ) -> dict[ConfigResource, dict[str, ConfigEntry]]:
        """Return all settings of each resource, by name."""

        async def send(node_id: int, keys: list[ConfigResource]) -> Outcome[ConfigResource, dict[str, ConfigEntry]]:
            request = DescribeConfigsRequest(
                resources=[
                    DescribeConfigsResource(resource_type=kind, resource_name=name, configuration_keys=None)
                    for kind, name in keys
                ],
                include_synonyms=include_synonyms,
                include_documentation=include_documentation,
            )
            response = await self._request(None if node_id == _ANY_BROKER else node_id, request)
            return by_key(response.results, _resource, _entries)

        async def attempt(keys: list[ConfigResource]) -> Outcome[ConfigResource, dict[str, ConfigEntry]]:
            return await gather(_by_broker(keys), send)

        return await self._each(as_list(resources, ConfigResource), attempt, timeout)

    async def incremental_alter_configs(
        self,
        changes: Mapping[ConfigResource, Iterable[AlterConfigOp] | Mapping[str, str | None]],
        *,
        validate_only: bool = False,
        timeout: float | None = None,
    ) -> None:
        """Change some settings and keep all others. In a mapping of names to values, None deletes a
        setting."""
        operations = {resource: _ops(ops) for resource, ops in changes.items()}

        def make(keys: list[ConfigResource]) -> Any:
            return incremental_alter_configs.IncrementalAlterConfigsRequest(
                resources=[
                    incremental_alter_configs.AlterConfigsResource(
                        resource_type=key.type,
                        resource_name=key.name,
                        configs=[
                            incremental_alter_configs.AlterableConfig(
                                name=op.name, config_operation=op.op, value=op.value
                            )
                            for op in operations[key]
                        ],
                    )
                    for key in keys
                ],
                validate_only=validate_only,
            )

        await self._alter(operations, make, timeout)

    async def alter_configs(
        self,
        configs: Mapping[ConfigResource, Mapping[str, str | None]],
        *,
        validate_only: bool = False,
        timeout: float | None = None,
    ) -> None:
        """Replace all settings. Settings that are not in `configs` are reset to their defaults."""

        def make(keys: list[ConfigResource]) -> Any:
            return alter_configs.AlterConfigsRequest(
                resources=[
                    alter_configs.AlterConfigsResource(
                        resource_type=key.type,
                        resource_name=key.name,
                        configs=[
                            alter_configs.AlterableConfig(name=name, value=value)
                            for name, value in configs[key].items()
                        ],
                    )
                    for key in keys
                ],
                validate_only=validate_only,
            )

        await self._alter(configs, make, timeout)

    async def _alter(self, keys: Iterable[ConfigResource], make: Any, timeout: float | None) -> None:
        async def send(node_id: int, resources: list[ConfigResource]) -> Outcome[ConfigResource, None]:
            response = await self._request(None if node_id == _ANY_BROKER else node_id, make(resources))
            return by_key(response.responses, _resource, lambda result: None)

        async def attempt(resources: list[ConfigResource]) -> Outcome[ConfigResource, None]:
            return await gather(_by_broker(resources), send)

        await self._each(keys, attempt, timeout)

    async def list_config_resources(
        self, types: Iterable[ResourceType] = (), *, timeout: float | None = None
    ) -> list[ConfigResource]:
        """Return the resources of these types that have dynamic settings. If `types` is empty,
        returns resources of all types."""

        async def attempt() -> list[ConfigResource]:
            response = await self._request(None, ListConfigResourcesRequest(resource_types=[int(t) for t in types]))
            if response.error_code:
                raise error_of(response.error_code)
            return [ConfigResource(_type(r.resource_type), r.resource_name) for r in response.config_resources]

        return await self._once("list_config_resources", attempt, timeout)


def _by_broker(resources: Iterable[ConfigResource]) -> dict[int, list[ConfigResource]]:
    grouped: dict[int, list[ConfigResource]] = {}
    for resource in resources:
        is_per_broker = resource.type in _PER_BROKER and resource.name.isdigit()
        grouped.setdefault(int(resource.name) if is_per_broker else _ANY_BROKER, []).append(resource)
    return grouped


def _ops(ops: Iterable[AlterConfigOp] | Mapping[str, str | None]) -> list[AlterConfigOp]:
    if isinstance(ops, Mapping):
        return [
            AlterConfigOp.delete(name) if value is None else AlterConfigOp(name, str(value), OpType.SET)
            for name, value in ops.items()
        ]
    return list(ops)


def _type(number: int) -> ResourceType:
    try:
        return ResourceType(number)
    except ValueError:
        return ResourceType.UNKNOWN


def _source(number: int) -> ConfigSource:
    try:
        return ConfigSource(number)
    except ValueError:
        return ConfigSource.UNKNOWN


def _resource(result: Any) -> ConfigResource:
    return ConfigResource(_type(result.resource_type), result.resource_name)


def _entries(result: Any) -> dict[str, ConfigEntry]:
    return {config.name: _entry(config, _resource(result)) for config in result.configs}


def _entry(config: DescribeConfigsResourceResult, resource: ConfigResource) -> ConfigEntry:
    source = _source(config.config_source)
    if config.config_source == -1:
        # Version 0 has only a flag for defaults.
        if config.is_default:
            source = ConfigSource.DEFAULT_CONFIG
        elif resource.type is ResourceType.TOPIC:
            source = ConfigSource.DYNAMIC_TOPIC_CONFIG
        else:
            source = ConfigSource.STATIC_BROKER_CONFIG
    has_type = config.config_type in ConfigType._value2member_map_
    return ConfigEntry(
        config.name,
        config.value,
        source,
        config.is_sensitive,
        config.read_only,
        tuple(ConfigSynonym(s.name, s.value, _source(s.source)) for s in config.synonyms),
        ConfigType(config.config_type) if has_type else None,
        config.documentation,
    )
