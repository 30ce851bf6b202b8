"""Calls about the cluster: its brokers, its controller, its features."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from kavka import __version__
from kavka.client.admin.base import AdminBase, Outcome, gather
from kavka.client.admin.types import ApiVersionRange, ClusterDescription, FeatureMetadata, operations
from kavka.client.connection import SOFTWARE_NAME
from kavka.client.errors import error_of
from kavka.client.metadata import Node
from kavka.protocol.api_keys import ApiKey
from kavka.protocol.messages.api_versions import ApiVersionsRequest
from kavka.protocol.messages.describe_cluster import DescribeClusterRequest
from kavka.protocol.messages.unregister_broker import UnregisterBrokerRequest
from kavka.protocol.messages.update_features import FeatureUpdateKey, UpdateFeaturesRequest


class Brokers(AdminBase):
    async def describe_cluster(
        self, *, include_authorized_operations: bool = False, timeout: float | None = None
    ) -> ClusterDescription:
        """Return the id of the cluster, its controller and its brokers."""

        async def attempt() -> ClusterDescription:
            connection = await self.cluster.any_connection(timeout=self._request_timeout)
            if not connection.supports(ApiKey.DESCRIBE_CLUSTER):
                return await self._describe_by_metadata()
            request = DescribeClusterRequest(include_cluster_authorized_operations=include_authorized_operations)
            response = await connection.send(request, timeout=self._request_timeout)
            if response.error_code:
                raise error_of(response.error_code, response.error_message)
            nodes = {b.broker_id: Node(b.broker_id, b.host, b.port, b.rack) for b in response.brokers}
            return ClusterDescription(
                response.cluster_id,
                nodes.get(response.controller_id),
                tuple(nodes[broker_id] for broker_id in sorted(nodes)),
                operations(response.cluster_authorized_operations),
            )

        return await self._once("describe_cluster", attempt, timeout)

    async def _describe_by_metadata(self) -> ClusterDescription:
        response = await self._metadata([])
        nodes = {b.node_id: Node(b.node_id, b.host, b.port, b.rack) for b in response.brokers}
        return ClusterDescription(
            response.cluster_id,
            nodes.get(response.controller_id),
            tuple(nodes[broker_id] for broker_id in sorted(nodes)),
        )

    async def describe_features(self, *, timeout: float | None = None) -> FeatureMetadata:
        """Return the finalized feature versions of the cluster, and the feature versions that the
        responding broker supports."""

        async def attempt() -> FeatureMetadata:
            request = ApiVersionsRequest(client_software_name=SOFTWARE_NAME, client_software_version=__version__)
            response = await self._request(None, request)
            if response.error_code:
                raise error_of(response.error_code)
            epoch = response.finalized_features_epoch
            return FeatureMetadata(
                {f.name: (f.min_version_level, f.max_version_level) for f in response.finalized_features},
                {f.name: (f.min_version, f.max_version) for f in response.supported_features},
                None if epoch < 0 else epoch,
            )

        return await self._once("describe_features", attempt, timeout)

    async def describe_api_versions(
        self, brokers: Iterable[int] | None = None, *, timeout: float | None = None
    ) -> dict[int, dict[int, ApiVersionRange]]:
        """Return the API versions that these brokers support, by broker and API key. None means all
        brokers."""

        async def send(node_id: int, broker_ids: list[int]) -> Outcome[int, dict[int, ApiVersionRange]]:
            request = ApiVersionsRequest(client_software_name=SOFTWARE_NAME, client_software_version=__version__)
            response = await self._request(node_id, request)
            if response.error_code:
                return {}, {node_id: error_of(response.error_code)}
            return {node_id: {k.api_key: ApiVersionRange(k.min_version, k.max_version) for k in response.api_keys}}, {}

        async def attempt(broker_ids: list[int]) -> Outcome[int, dict[int, ApiVersionRange]]:
            return await gather({broker: [broker] for broker in broker_ids}, send)

        return await self._each_broker(brokers, attempt, timeout)

    async def unregister_broker(self, broker_id: int, *, timeout: float | None = None) -> None:
        """Unregister a broker that was removed from a KRaft cluster. Raises UnsupportedVersion for
        other clusters."""

        async def attempt() -> None:
            response = await self._request(None, UnregisterBrokerRequest(broker_id=broker_id))
            if response.error_code:
                raise error_of(response.error_code, response.error_message)

        await self._once("unregister_broker", attempt, timeout)

    async def update_features(
        self,
        levels: Mapping[str, int],
        *,
        allow_downgrade: bool = False,
        validate_only: bool = False,
        timeout: float | None = None,
    ) -> None:
        """Set the levels of features for the whole cluster; 0 disables a feature."""

        async def attempt() -> None:
            node_id = await self._controller()
            connection = await self.cluster.connection(node_id, timeout=self._request_timeout)
            api_version = connection.version_of(ApiKey.UPDATE_FEATURES)
            updates = [FeatureUpdateKey(feature=name, max_version_level=level) for name, level in levels.items()]
            for update in updates:
                if api_version == 0:
                    update.allow_downgrade = allow_downgrade
                elif allow_downgrade:
                    # Allow only safe downgrades, which lose no metadata.
                    update.upgrade_type = 2
            request = UpdateFeaturesRequest(feature_updates=updates)
            if api_version >= 1:
                request.validate_only = validate_only
            response = await connection.send(request, version=api_version, timeout=self._request_timeout)
            if response.error_code:
                raise error_of(response.error_code, response.error_message)
            for result in response.results:
                if result.error_code:
                    raise error_of(result.error_code, result.error_message)

        await self._once("update_features", attempt, timeout)
