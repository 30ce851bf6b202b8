"""The paths of the metadata tree and the contents of its znodes: the JSON of Kafka 3.9.

Each class is the content of one type of znode, with `encode` and `decode`. The functions return
paths, or encode and decode simpler contents. Members that older releases did not write are
optional, and unknown members are ignored. Members are written in the order of Kafka 3.9.1, so that
the bytes are equal wherever Kafka's order is fixed.

`decode` raises `MalformedNode` if the data is not valid for the path.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple
from urllib.parse import quote, unquote

from kavka.common.types import TopicPartition, uuid_from_text, uuid_text
from kavka.security.acls import (
    Acls,
    PatternType,
    ResourcePattern,
    ResourceType,
    acls_from_members,
    acls_to_members,
)
from kavka.security.quotas import DEFAULT, QuotaEntity

BROKERS = "/brokers"
BROKER_IDS = "/brokers/ids"
BROKER_SEQUENCE = "/brokers/seqid"
TOPICS = "/brokers/topics"
CONTROLLER = "/controller"
CONTROLLER_EPOCH = "/controller_epoch"
CONFIG = "/config"
CONFIG_CHANGES = "/config/changes"
CONFIG_CHANGE_PREFIX = "config_change_"
DELETE_TOPICS = "/admin/delete_topics"
REASSIGN_PARTITIONS = "/admin/reassign_partitions"
PREFERRED_REPLICA_ELECTION = "/admin/preferred_replica_election"
ISR_CHANGES = "/isr_change_notification"
ISR_CHANGE_PREFIX = "isr_change_"
LOG_DIR_EVENTS = "/log_dir_event_notification"
LOG_DIR_EVENT_PREFIX = "log_dir_event_"
CLUSTER_ID = "/cluster/id"
PRODUCER_ID_BLOCK = "/latest_producer_id_block"
FEATURE = "/feature"
FEATURE_LEVELS = "kavka.levels"
CONSUMERS = "/consumers"
ACLS = "/kafka-acl"
EXTENDED_ACLS = "/kafka-acl-extended"
ACL_CHANGES = "/kafka-acl-changes"
EXTENDED_ACL_CHANGES = "/kafka-acl-extended-changes"
ACL_CHANGE_PREFIX = "acl_changes_"

# The entity types under /config, and the name of the default entity.
TOPIC_CONFIGS, BROKER_CONFIGS, CLIENT_CONFIGS, USER_CONFIGS, IP_CONFIGS = "topics", "brokers", "clients", "users", "ips"
GROUP_CONFIGS = "groups"
DEFAULT_ENTITY = "<default>"

# The empty znodes that every cluster has, in the order in which Kafka creates them.
PERSISTENT_PATHS = (
    CONSUMERS,
    BROKER_IDS,
    TOPICS,
    CONFIG_CHANGES,
    DELETE_TOPICS,
    BROKER_SEQUENCE,
    ISR_CHANGES,
    PRODUCER_ID_BLOCK,
    LOG_DIR_EVENTS,
    *(
        f"{CONFIG}/{entity_type}"
        for entity_type in (TOPIC_CONFIGS, CLIENT_CONFIGS, USER_CONFIGS, BROKER_CONFIGS, IP_CONFIGS)
    ),
)


class MalformedNode(ValueError):
    """The data of a znode is not valid for its path."""


def broker(broker_id: int) -> str:
    return f"{BROKER_IDS}/{broker_id}"


def topic(name: str) -> str:
    return f"{TOPICS}/{name}"


def partitions(name: str) -> str:
    return f"{TOPICS}/{name}/partitions"


def partition(tp: TopicPartition) -> str:
    return f"{TOPICS}/{tp.topic}/partitions/{tp.partition}"


def partition_state(tp: TopicPartition) -> str:
    return f"{TOPICS}/{tp.topic}/partitions/{tp.partition}/state"


def config(entity_type: str, name: str) -> str:
    return f"{CONFIG}/{entity_type}/{name}"


def topic_config(name: str) -> str:
    return config(TOPIC_CONFIGS, name)


def broker_config(broker_id: int | None) -> str:
    """The path of the dynamic settings of a broker, or of all brokers if `broker_id` is None."""
    return config(BROKER_CONFIGS, DEFAULT_ENTITY if broker_id is None else str(broker_id))


def group_config(group: str) -> str:
    return config(GROUP_CONFIGS, entity_node(group))


def entity_node(name: str) -> str:
    """The name of the znode of a group, user or client. The entity may have any name, but a znode
    cannot be named "." or ".."."""
    return sanitize(name) if name.strip(".") or len(name) > 2 else name.replace(".", "%2E")


def quota_entity_path(entity: QuotaEntity) -> str:
    """The path below /config of an entity with quotas: 'users/alice/clients/<default>'. Raises
    ValueError if no znode stores quotas of this combination."""
    match entity:
        case QuotaEntity(str(user), None, None):
            return f"{USER_CONFIGS}/{_quota_node(user)}"
        case QuotaEntity(str(user), str(client_id), None):
            return f"{USER_CONFIGS}/{_quota_node(user)}/{CLIENT_CONFIGS}/{_quota_node(client_id)}"
        case QuotaEntity(None, str(client_id), None):
            return f"{CLIENT_CONFIGS}/{_quota_node(client_id)}"
        case QuotaEntity(None, None, str(ip)):
            return f"{IP_CONFIGS}/{_quota_node(ip)}"
    raise ValueError(f"there are no quotas of {entity}")


def quota_entity(entity_path: str) -> QuotaEntity:
    """The entity of a path below /config. Raises MalformedNode."""
    match entity_path.split("/"):
        case [entity_type, user] if entity_type == USER_CONFIGS:
            return QuotaEntity(_quota_name(user))
        case [entity_type, user, child_type, client_id] if (entity_type, child_type) == (USER_CONFIGS, CLIENT_CONFIGS):
            return QuotaEntity(_quota_name(user), _quota_name(client_id))
        case [entity_type, client_id] if entity_type == CLIENT_CONFIGS:
            return QuotaEntity(None, _quota_name(client_id))
        case [entity_type, ip] if entity_type == IP_CONFIGS:
            return QuotaEntity(None, None, _quota_name(ip))
    raise MalformedNode(f"{entity_path!r} is not the path of a user, client or address")


def _quota_node(name: str) -> str:
    return DEFAULT_ENTITY if name == DEFAULT else entity_node(name)


def _quota_name(node: str) -> str:
    return DEFAULT if node == DEFAULT_ENTITY else desanitize(node)


def delete_topic(name: str) -> str:
    return f"{DELETE_TOPICS}/{name}"


def consumer_offset(group: str, tp: TopicPartition) -> str:
    """The path of an offset committed with OffsetCommit v0. The data of the znode is the offset as
    text."""
    return f"{CONSUMERS}/{group}/offsets/{tp.topic}/{tp.partition}"


def sanitize(name: str) -> str:
    """The name of the znode of a user or client, encoded like Kafka's Sanitizer."""
    return quote(name, safe="-_.~").replace("~", "%7E")


def desanitize(name: str) -> str:
    return unquote(name)


def topic_id_from_text(text: str) -> uuid.UUID:
    try:
        return uuid_from_text(text)
    except (TypeError, ValueError) as error:
        raise MalformedNode(f"{text!r} is not a topic id") from error


def random_topic_id() -> uuid.UUID:
    """Return a random topic id whose text does not start with a dash. A command line would parse
    such a text as an option."""
    while True:
        topic_id = uuid.uuid4()
        if topic_id.bytes[0] >> 2 != 62:
            return topic_id


def random_cluster_id() -> str:
    return uuid_text(uuid.uuid4())


class EndPoint(NamedTuple):
    """One advertised listener."""

    listener: str
    security_protocol: str
    host: str
    port: int

    def url(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{self.listener}://{host}:{self.port}"


@dataclass(frozen=True, slots=True)
class BrokerRegistration:
    """/brokers/ids/N, ephemeral. Its czxid is the broker's epoch."""

    id: int
    end_points: tuple[EndPoint, ...]
    timestamp: int
    rack: str | None = None
    jmx_port: int = -1
    features: Mapping[str, Mapping[str, int]] = field(default_factory=dict)

    def encode(self) -> bytes:
        # Old clients read only `host` and `port`, the address of a plaintext listener.
        plaintext = next((e for e in self.end_points if e.security_protocol == "PLAINTEXT"), None)
        members: dict[str, Any] = {
            "features": {name: dict(levels) for name, levels in self.features.items()},
            "listener_security_protocol_map": {e.listener: e.security_protocol for e in self.end_points},
            "endpoints": [e.url() for e in self.end_points],
        }
        if self.rack is not None:
            members["rack"] = self.rack
        members |= {
            "jmx_port": self.jmx_port,
            "port": plaintext.port if plaintext else -1,
            "host": plaintext.host if plaintext else None,
            "version": 5,
            "timestamp": str(self.timestamp),
        }
        return _dump(members)

    @classmethod
    def decode(cls, broker_id: int, data: bytes | None) -> BrokerRegistration:
        members = _load(data, broker(broker_id))
        version = _number(members, "version")
        if version < 1:
            raise MalformedNode(f"{broker(broker_id)} has the unsupported version {version}")
        if version == 1:
            protocols: Mapping[str, str] = {}
            urls = [f"PLAINTEXT://{members.get('host')}:{members.get('port')}"]
        else:
            protocols = members.get("listener_security_protocol_map") or {}
            urls = members.get("endpoints") or []
        try:
            return cls(
                broker_id,
                tuple(_end_point(url, protocols) for url in urls),
                int(members.get("timestamp") or -1),
                members.get("rack"),
                int(members.get("jmx_port", -1)),
                members.get("features") or {},
            )
        except (AttributeError, TypeError, ValueError) as error:
            raise MalformedNode(f"{broker(broker_id)}: {error}") from error


def _end_point(url: str, protocols: Mapping[str, str]) -> EndPoint:
    listener, separator, address = url.partition("://")
    host, _, port = address.rpartition(":")
    if not separator or not port.lstrip("-").isdigit():
        raise MalformedNode(f"{url!r} is not the address of a listener")
    return EndPoint(listener, protocols.get(listener, listener), host.strip("[]"), int(port))


@dataclass(frozen=True, slots=True)
class ControllerNode:
    """/controller, ephemeral: the broker that created it is the controller."""

    broker_id: int
    timestamp: int

    def encode(self) -> bytes:
        members = {"version": 2, "brokerid": self.broker_id, "timestamp": str(self.timestamp)}
        return _dump(members | {"kraftControllerEpoch": -1})

    @classmethod
    def decode(cls, data: bytes | None) -> ControllerNode:
        members = _load(data, CONTROLLER)
        try:
            return cls(_number(members, "brokerid"), int(members.get("timestamp") or -1))
        except (TypeError, ValueError) as error:
            raise MalformedNode(f"{CONTROLLER}: {error}") from error


def encode_epoch(epoch: int) -> bytes:
    return str(epoch).encode()


def decode_epoch(data: bytes | None) -> int:
    return _text_number(data, CONTROLLER_EPOCH)


@dataclass(frozen=True, slots=True)
class ReplicaAssignment:
    """The replicas of a partition, preferred leader first. During a reassignment, `replicas` has
    the replicas of both assignments."""

    replicas: tuple[int, ...]
    adding: tuple[int, ...] = ()
    removing: tuple[int, ...] = ()

    @property
    def is_being_reassigned(self) -> bool:
        return bool(self.adding or self.removing)

    @property
    def origin(self) -> tuple[int, ...]:
        """The replicas before the reassignment."""
        return tuple(r for r in self.replicas if r not in self.adding)

    @property
    def target(self) -> tuple[int, ...]:
        """The replicas after the reassignment."""
        return tuple(r for r in self.replicas if r not in self.removing)

    def moving_to(self, target: Sequence[int]) -> ReplicaAssignment:
        """Return a reassignment to `target`. It starts from the origin of the current reassignment,
        if there is one."""
        origin = self.origin
        replicas = tuple(dict.fromkeys((*target, *origin)))
        return ReplicaAssignment(
            replicas, tuple(r for r in replicas if r not in origin), tuple(r for r in replicas if r not in target)
        )

    def without(self, broker_id: int) -> ReplicaAssignment:
        fields = (self.replicas, self.adding, self.removing)
        return ReplicaAssignment(*(tuple(r for r in replicas if r != broker_id) for replicas in fields))


@dataclass(frozen=True, slots=True)
class TopicNode:
    """/brokers/topics/T. A topic of an old release has no id until a controller assigns one."""

    topic_id: uuid.UUID | None
    partitions: Mapping[int, ReplicaAssignment]

    def encode(self) -> bytes:
        members: dict[str, Any] = {"partitions": {str(p): list(a.replicas) for p, a in self.partitions.items()}}
        if self.topic_id is not None:
            members["topic_id"] = uuid_text(self.topic_id)
        members["adding_replicas"] = {str(p): list(a.adding) for p, a in self.partitions.items() if a.adding}
        members["removing_replicas"] = {str(p): list(a.removing) for p, a in self.partitions.items() if a.removing}
        members["version"] = 3 if self.topic_id is not None else 2
        return _dump(members)

    @classmethod
    def decode(cls, name: str, data: bytes | None) -> TopicNode:
        members = _load(data, topic(name))
        adding = members.get("adding_replicas") or {}
        removing = members.get("removing_replicas") or {}
        topic_id = members.get("topic_id")
        try:
            assignments = {
                int(p): ReplicaAssignment(_ids(replicas), _ids(adding.get(p, [])), _ids(removing.get(p, [])))
                for p, replicas in (members.get("partitions") or {}).items()
            }
        except (AttributeError, ValueError) as error:
            raise MalformedNode(f"{topic(name)}: {error}") from error
        return cls(topic_id_from_text(topic_id) if topic_id else None, dict(sorted(assignments.items())))


RECOVERED, RECOVERING = 0, 1


@dataclass(frozen=True, slots=True)
class PartitionStateNode:
    """/brokers/topics/T/partitions/P/state. The version of the znode is the partition epoch."""

    leader: int
    leader_epoch: int
    isr: tuple[int, ...]
    controller_epoch: int
    leader_recovery_state: int = RECOVERED

    def encode(self) -> bytes:
        members: dict[str, Any] = {
            "controller_epoch": self.controller_epoch,
            "leader": self.leader,
            "version": 1,
            "leader_epoch": self.leader_epoch,
            "isr": list(self.isr),
        }
        if self.leader_recovery_state != RECOVERED:
            members["leader_recovery_state"] = self.leader_recovery_state
        return _dump(members)

    @classmethod
    def decode(cls, tp: TopicPartition, data: bytes | None) -> PartitionStateNode:
        path = partition_state(tp)
        members = _load(data, path)
        try:
            return cls(
                _number(members, "leader"),
                _number(members, "leader_epoch"),
                _ids(members.get("isr")),
                _number(members, "controller_epoch"),
                int(members.get("leader_recovery_state", RECOVERED)),
            )
        except (TypeError, ValueError) as error:
            raise MalformedNode(f"{path}: {error}") from error


def encode_config(values: Mapping[str, str]) -> bytes:
    """Encode a znode under /config/topics, /config/brokers …: the overrides by name."""
    return _dump({"version": 1, "config": dict(values)})


def decode_config(data: bytes | None) -> dict[str, str]:
    if not data:
        return {}
    values = _load(data, CONFIG).get("config")
    if not isinstance(values, dict):
        raise MalformedNode("a node under /config has no settings")
    return {name: str(value) for name, value in values.items()}


def encode_config_change(entity_path: str) -> bytes:
    """Encode /config/changes/config_change_N: the path of the changed znode below /config, for
    example 'topics/T'."""
    return _dump({"version": 2, "entity_path": entity_path})


def decode_config_change(data: bytes | None) -> str:
    members = _load(data, CONFIG_CHANGES)
    if _number(members, "version") == 1:
        return f"{members.get('entity_type')}/{members.get('entity_name')}"
    entity_path = members.get("entity_path")
    if not isinstance(entity_path, str):
        raise MalformedNode("a change notification has no entity path")
    return entity_path


def acls_folder(pattern_type: PatternType, resource_type: ResourceType) -> str:
    """The path of the znodes of all patterns of a type."""
    folder = ACLS if pattern_type is PatternType.LITERAL else f"{EXTENDED_ACLS}/{pattern_type.name.lower()}"
    return f"{folder}/{resource_type.text}"


def acls(pattern: ResourcePattern) -> str:
    return f"{acls_folder(pattern.pattern_type, pattern.resource_type)}/{pattern.name}"


def encode_acls(entries: Acls) -> bytes:
    """Encode /kafka-acl/<type>/<name> or /kafka-acl-extended/prefixed/<type>/<name>."""
    return _dump(acls_to_members(entries))


def decode_acls(pattern: ResourcePattern, data: bytes | None) -> Acls:
    try:
        return acls_from_members(_load(data, acls(pattern)))
    except ValueError as error:
        raise MalformedNode(f"{acls(pattern)}: {error}") from error


def acl_changes(pattern_type: PatternType) -> str:
    """The path of the change notifications of a pattern type."""
    return ACL_CHANGES if pattern_type is PatternType.LITERAL else EXTENDED_ACL_CHANGES


def encode_acl_change(pattern: ResourcePattern) -> bytes:
    """Encode a notification: text for a literal pattern, JSON for other patterns."""
    if pattern.pattern_type is PatternType.LITERAL:
        return f"{pattern.resource_type.name}:{pattern.name}".encode()
    members = {"version": 1, "resourceType": pattern.resource_type.name, "name": pattern.name}
    return _dump(members | {"patternType": pattern.pattern_type.name})


def decode_acl_change(pattern_type: PatternType, data: bytes | None) -> ResourcePattern:
    try:
        if pattern_type is PatternType.LITERAL:
            type_text, separator, name = (data or b"").decode().partition(":")
        else:
            members = _load(data, EXTENDED_ACL_CHANGES)
            type_text, name, separator = str(members.get("resourceType")), str(members.get("name")), ":"
            pattern_type = PatternType.from_text(str(members.get("patternType")))
        if not separator or not name:
            raise ValueError("no resource name")
        return ResourcePattern(ResourceType.from_text(type_text), name, pattern_type)
    except ValueError as error:
        raise MalformedNode(f"a notification of a changed ACL: {error}") from error


def encode_reassignment(assignments: Mapping[TopicPartition, Sequence[int]]) -> bytes:
    """Encode /admin/reassign_partitions, which requests a reassignment in old Kafka releases."""
    rows = [{"topic": t, "partition": p, "replicas": list(replicas)} for (t, p), replicas in assignments.items()]
    return _dump({"version": 1, "partitions": rows})


def decode_reassignment(data: bytes | None) -> dict[TopicPartition, tuple[int, ...]]:
    rows = _rows(data, REASSIGN_PARTITIONS)
    return {_topic_partition(row): _ids(row.get("replicas") or []) for row in rows}


def encode_partitions(tps: Sequence[TopicPartition]) -> bytes:
    """Encode /admin/preferred_replica_election or /isr_change_notification/isr_change_N."""
    return _dump({"version": 1, "partitions": [{"topic": t, "partition": p} for t, p in tps]})


def decode_partitions(data: bytes | None) -> list[TopicPartition]:
    return [_topic_partition(row) for row in _rows(data, ISR_CHANGES)]


LOG_DIR_FAILED = 1


def encode_log_dir_event(broker_id: int) -> bytes:
    """Encode /log_dir_event_notification/log_dir_event_N: a log directory of the broker has
    failed."""
    return _dump({"version": 1, "broker": broker_id, "event": LOG_DIR_FAILED})


def decode_log_dir_event(data: bytes | None) -> int:
    return _number(_load(data, LOG_DIR_EVENTS), "broker")


def encode_cluster_id(cluster_id: str) -> bytes:
    return _dump({"version": "1", "id": cluster_id})


def decode_cluster_id(data: bytes | None) -> str:
    cluster_id = _load(data, CLUSTER_ID).get("id")
    if not isinstance(cluster_id, str):
        raise MalformedNode(f"{CLUSTER_ID} has no cluster id")
    return cluster_id


@dataclass(frozen=True, slots=True)
class ProducerIdBlock:
    """/latest_producer_id_block: the last allocated block of producer ids, both ends included."""

    broker_id: int
    first: int
    last: int

    def encode(self) -> bytes:
        ends = {"block_start": str(self.first), "block_end": str(self.last)}
        return _dump({"version": 1, "broker": self.broker_id} | ends)

    @classmethod
    def decode(cls, data: bytes | None) -> ProducerIdBlock | None:
        """Return the block, or None if no block was allocated yet."""
        if not data:
            return None
        members = _load(data, PRODUCER_ID_BLOCK)
        try:
            return cls(_number(members, "broker"), int(members["block_start"]), int(members["block_end"]))
        except (KeyError, TypeError, ValueError) as error:
            raise MalformedNode(f"{PRODUCER_ID_BLOCK} has no block") from error


def encode_features(finalized: Mapping[str, int], enabled: bool = True) -> bytes:
    return _dump({"features": dict(finalized), "version": 2, "status": int(enabled)})


def decode_features(data: bytes | None) -> tuple[dict[str, int], bool]:
    members = _load(data, FEATURE)
    features = members.get("features") or {}
    if not isinstance(features, dict):
        raise MalformedNode(f"{FEATURE} has no features")
    return features, _number(members, "status") == 1


def with_feature_levels(data: bytes | None, levels: Mapping[str, int]) -> bytes:
    """Return the data of /feature with `levels` as the levels of Kavka's brokers.

    The levels are a separate member, because an Apache Kafka broker stops if `features` contains a
    feature that it does not support.
    """
    try:
        members = dict(_load(data, FEATURE))
    except MalformedNode:
        members = dict(_load(encode_features({}), FEATURE))
    return _dump({**members, FEATURE_LEVELS: dict(levels)})


def decode_feature_levels(data: bytes | None) -> dict[str, int]:
    """Return the levels of Kavka's brokers in /feature. Malformed levels are omitted."""
    levels = _load(data, FEATURE).get(FEATURE_LEVELS)
    return {name: level for name, level in levels.items() if type(level) is int} if isinstance(levels, dict) else {}


def encode_offset(offset: int) -> bytes:
    return str(offset).encode()


def decode_offset(data: bytes | None) -> int:
    return _text_number(data, CONSUMERS)


# Kafka's JSON has no blanks and does not escape non-ASCII characters.
_encoder = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"))


def _dump(members: Mapping[str, Any]) -> bytes:
    return _encoder.encode(members).encode()


def _load(data: bytes | None, path: str) -> dict[str, Any]:
    try:
        members = json.loads(data or b"")
    except (ValueError, RecursionError) as error:
        raise MalformedNode(f"{path} is not JSON") from error
    if not isinstance(members, dict):
        raise MalformedNode(f"{path} is not a JSON object")
    return members


def _rows(data: bytes | None, path: str) -> list[dict[str, Any]]:
    rows = _load(data, path).get("partitions")
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise MalformedNode(f"{path} has no partitions")
    return rows


def _topic_partition(row: Mapping[str, Any]) -> TopicPartition:
    name = row.get("topic")
    if not isinstance(name, str):
        raise MalformedNode("a partition has no topic")
    return TopicPartition(name, _number(row, "partition"))


def _ids(value: Any) -> tuple[int, ...]:
    if not isinstance(value, list) or not all(isinstance(item, int) for item in value):
        raise MalformedNode(f"not a list of broker ids: {value!r}")
    return tuple(value)


def _number(members: Mapping[str, Any], name: str) -> int:
    value = members.get(name)
    if not isinstance(value, int):
        raise MalformedNode(f"{name} is not a number: {value!r}")
    return value


def _text_number(data: bytes | None, path: str) -> int:
    try:
        return int(data or b"")
    except ValueError as error:
        raise MalformedNode(f"{path} is not a number") from error
