"""Log directories: describing their replicas, and moving replicas between them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from kavka.client.admin.base import AdminBase, Outcome, gather
from kavka.client.admin.types import LogDirDescription, ReplicaInfo, ReplicaLogDirInfo, TopicPartitionReplica
from kavka.client.errors import error_of
from kavka.common.errors import KafkaError
from kavka.common.types import TopicPartition, by_topic
from kavka.protocol.messages.alter_replica_log_dirs import (
    AlterReplicaLogDir,
    AlterReplicaLogDirsRequest,
    AlterReplicaLogDirTopic,
)
from kavka.protocol.messages.describe_log_dirs import DescribableLogDirTopic, DescribeLogDirsRequest


class LogDirs(AdminBase):
    async def describe_log_dirs(
        self,
        brokers: Iterable[int] | None = None,
        partitions: Iterable[TopicPartition] | None = None,
        *,
        timeout: float | None = None,
    ) -> dict[int, dict[str, LogDirDescription]]:
        """Return the log directories of these brokers, by broker and path, with the replicas of
        these partitions and their sizes. None means all brokers or all partitions."""
        topics = None
        if partitions is not None:
            topics = [DescribableLogDirTopic(topic=t, partitions=ids) for t, ids in by_topic(partitions).items()]

        async def send(node_id: int, broker_ids: list[int]) -> Outcome[int, dict[str, LogDirDescription]]:
            response = await self._request(node_id, DescribeLogDirsRequest(topics=topics))
            if response.error_code:
                return {}, {node_id: error_of(response.error_code)}
            descriptions: dict[str, LogDirDescription] = {}
            for result in response.results:
                replicas: dict[TopicPartition, list[ReplicaInfo]] = {}
                for topic in result.topics:
                    for replica in topic.partitions:
                        replicas.setdefault(TopicPartition(topic.name, replica.partition_index), []).append(
                            ReplicaInfo(replica.partition_size, replica.offset_lag, replica.is_future_key)
                        )
                descriptions[result.log_dir] = LogDirDescription(
                    error_of(result.error_code) if result.error_code else None,
                    replicas,
                    None if result.total_bytes < 0 else result.total_bytes,
                    None if result.usable_bytes < 0 else result.usable_bytes,
                )
            return {node_id: descriptions}, {}

        async def attempt(ids: list[int]) -> Outcome[int, dict[str, LogDirDescription]]:
            return await gather({broker: [broker] for broker in ids}, send)

        return await self._each_broker(brokers, attempt, timeout)

    async def describe_replica_log_dirs(
        self, replicas: Iterable[TopicPartitionReplica], *, timeout: float | None = None
    ) -> dict[TopicPartitionReplica, ReplicaLogDirInfo]:
        """Return the log directory of each replica, and the directory that the replica is being
        moved to. Both are None for a replica that the broker does not have."""
        requested = [TopicPartitionReplica(*replica) for replica in replicas]
        by_broker: dict[int, list[TopicPartition]] = {}
        for replica in requested:
            by_broker.setdefault(replica.broker_id, []).append(TopicPartition(replica.topic, replica.partition))
        partitions = {tp for broker_partitions in by_broker.values() for tp in broker_partitions}
        result = dict.fromkeys(requested, ReplicaLogDirInfo())
        if not requested:
            return result
        for broker, directories in (await self.describe_log_dirs(by_broker, partitions, timeout=timeout)).items():
            for path, directory in directories.items():
                for tp, infos in directory.replicas.items():
                    replica = TopicPartitionReplica(tp.topic, tp.partition, broker)
                    for info in infos if replica in result else ():
                        log_dir_info, lag = result[replica], info.offset_lag
                        result[replica] = (
                            log_dir_info._replace(future_log_dir=path, future_offset_lag=lag)
                            if info.is_future
                            else log_dir_info._replace(current_log_dir=path, current_offset_lag=lag)
                        )
        return result

    async def alter_replica_log_dirs(
        self, moves: Mapping[TopicPartitionReplica, str], *, timeout: float | None = None
    ) -> None:
        """Start to move replicas to other log directories of their brokers. `describe_log_dirs`
        shows the progress."""
        requested = {TopicPartitionReplica(*replica): path for replica, path in moves.items()}

        async def send(node_id: int, replicas: list[TopicPartitionReplica]) -> Outcome[TopicPartitionReplica, None]:
            dirs: dict[str, dict[str, list[int]]] = {}
            for replica in replicas:
                ids = dirs.setdefault(requested[replica], {}).setdefault(replica.topic, [])
                ids.append(replica.partition)
            request = AlterReplicaLogDirsRequest(
                dirs=[
                    AlterReplicaLogDir(
                        path=path,
                        topics=[AlterReplicaLogDirTopic(name=name, partitions=ids) for name, ids in topics.items()],
                    )
                    for path, topics in dirs.items()
                ]
            )
            response = await self._request(node_id, request)
            done: dict[TopicPartitionReplica, None] = {}
            errors: dict[TopicPartitionReplica, KafkaError] = {}
            for result in response.results:
                for partition in result.partitions:
                    key = TopicPartitionReplica(result.topic_name, partition.partition_index, node_id)
                    if partition.error_code:
                        errors[key] = error_of(partition.error_code)
                    else:
                        done[key] = None
            return done, errors

        async def attempt(replicas: list[TopicPartitionReplica]) -> Outcome[TopicPartitionReplica, None]:
            await self._brokers()
            grouped: dict[int, list[TopicPartitionReplica]] = {}
            for replica in replicas:
                grouped.setdefault(replica.broker_id, []).append(replica)
            return await gather(grouped, send)

        await self._each(requested, attempt, timeout)
