"""From the files of MirrorMaker to flows. No I/O.

MirrorMaker 2's file names clusters (`clusters = A, B`) and says of each how it is reached (`A.bootstrap.servers`), and
of each pair whether and how it is mirrored (`A->B.enabled`, `A->B.topics`). A setting of a pair comes before the same
without one. Settings of clients: `consumer.x` for all, `A.consumer.x`, `A->B.consumer.x`, and the same for `producer`
and `admin`; `A.x` where x is a setting of every client.
"""

from __future__ import annotations

import difflib
import logging
from collections.abc import Iterable, Mapping
from dataclasses import replace
from itertools import permutations
from typing import Any

from kavka.client.admin_config import ADMIN_CONFIGS
from kavka.client.consumer_config import CONSUMER_CONFIGS
from kavka.client.producer_config import PRODUCER_CONFIGS
from kavka.pipeline.mirror.flow import Flow
from kavka.pipeline.mirror.policy import DEFAULT, Policy, patterns
from kavka.pipeline.spark.errors import OptionError

log = logging.getLogger(__name__)

# As MirrorMaker sets them: what cannot be sent is waited for, in order, until it can be.
PRODUCER_DEFAULTS = {
    "acks": "all",
    "delivery.timeout.ms": str(0x7FFFFFFF),
    "max.block.ms": str(0x7FFFFFFF),
    "max.request.size": str(64 * 1024 * 1024),
    "batch.size": str(256 * 1024),
    "batch.max.bytes": str(512 * 1024),
    "linger.ms": "5",
}
# A batch is read whole, however large it is, and is not much work: larger answers make fewer requests.
CONSUMER_DEFAULTS = {"fetch.max.bytes": str(16 * 1024 * 1024), "max.partition.fetch.bytes": str(4 * 1024 * 1024)}

# Of a pair, or of all pairs: which name of `Flow`, and how it is read.
_SETTINGS: dict[str, tuple[str, str]] = {
    "topics": ("topics", "list"),
    "topics.exclude": ("topics_exclude", "list"),
    "topics.blacklist": ("topics_exclude", "list"),
    "groups": ("groups", "list"),
    "groups.exclude": ("groups_exclude", "list"),
    "groups.blacklist": ("groups_exclude", "list"),
    "config.properties.exclude": ("config_exclude", "list"),
    "config.properties.blacklist": ("config_exclude", "list"),
    "replication.policy.class": ("policy_class", "text"),
    "replication.policy.separator": ("separator", "text"),
    "replication.policy.internal.topic.separator.enabled": ("internal_separator", "flag"),
    "replication.factor": ("replication_factor", "number"),
    "refresh.topics.enabled": ("create_topics", "flag"),
    "refresh.topics.interval.seconds": ("refresh_topics", "seconds"),
    "sync.topic.configs.enabled": ("sync_configs", "flag"),
    "sync.topic.configs.interval.seconds": ("sync_configs_interval", "seconds"),
    "emit.heartbeats.enabled": ("emit_heartbeats", "flag"),
    "emit.heartbeats.interval.seconds": ("heartbeats_interval", "seconds"),
    "heartbeats.replication.enabled": ("replicate_heartbeats", "flag"),
    "emit.offset-syncs.enabled": ("emit_offset_syncs", "flag"),
    "offset-syncs.topic.location": ("offset_syncs_location", "location"),
    "emit.checkpoints.enabled": ("emit_checkpoints", "flag"),
    "emit.checkpoints.interval.seconds": ("checkpoints_interval", "seconds"),
    "sync.group.offsets.enabled": ("sync_groups", "flag"),
    "sync.group.offsets.interval.seconds": ("sync_groups_interval", "seconds"),
    "refresh.groups.interval.seconds": ("refresh_groups", "seconds"),
    "exactly.once.source.support": ("exactly_once", "exactly once"),
    # Ours.
    "state.dir": ("state_dir", "text"),
    "max.records.per.batch": ("records_per_batch", "number"),
    "progress.group.id": ("progress_group", "text"),
}
_REFRESH_GROUPS = "refresh.groups.enabled"
_FACTORS = ("heartbeats", "checkpoints", "offset-syncs")
_MIRROR, _BYTES = "org.apache.kafka.connect.mirror.", "org.apache.kafka.connect.converters.ByteArrayConverter"
# Settings that change what is mirrored and are not supported: only values that mean what is done anyway are accepted.
_ONLY: dict[str, frozenset[str]] = {
    "topic.filter.class": frozenset({"DefaultTopicFilter", f"{_MIRROR}DefaultTopicFilter"}),
    "group.filter.class": frozenset({"DefaultGroupFilter", f"{_MIRROR}DefaultGroupFilter"}),
    "config.property.filter.class": frozenset({"DefaultConfigPropertyFilter", f"{_MIRROR}DefaultConfigPropertyFilter"}),
    "forwarding.admin.class": frozenset({"ForwardingAdmin", "org.apache.kafka.clients.admin.ForwardingAdmin"}),
    "use.defaults.from": frozenset({"target"}),
    **dict.fromkeys(
        ("key.converter", "value.converter", "header.converter"), frozenset({"ByteArrayConverter", _BYTES})
    ),
    **dict.fromkeys(("config.providers", "transforms", "predicates"), frozenset()),
}
# Settings of MirrorMaker and of the Connect workers under it that say nothing here, or nothing that could be done.
_WITHOUT_EFFECT = frozenset(
    {
        "tasks.max", "offset.lag.max", "admin.timeout.ms", "consumer.poll.timeout.ms",
        "sync.topic.acls.enabled", "sync.topic.acls.interval.seconds", "use.incremental.alter.configs",
        "add.source.alias.to.metrics", "dedicated.mode.enable.internal.rest", "listeners",
        "offset.storage.replication.factor", "status.storage.replication.factor", "config.storage.replication.factor",
        "offset.storage.topic", "status.storage.topic", "config.storage.topic", "group.id", "name",
        "offset.flush.interval.ms", "offset.flush.timeout.ms", "metric.reporters", "enabled",
    }
)  # fmt: skip
_CLIENTS = {"consumer": CONSUMER_CONFIGS, "producer": PRODUCER_CONFIGS, "admin": ADMIN_CONFIGS}


def flows_of(given: Mapping[str, str], only_targets: Iterable[str] = ()) -> list[Flow]:
    """All pairs that are enabled, or that heartbeats are written for; of `only_targets` where some are named."""
    clusters = patterns(given.get("clusters", ""))
    if not clusters:
        raise OptionError('there is no setting "clusters": which clusters are there?')
    if len(set(clusters)) != len(clusters):
        raise OptionError("clusters names a cluster twice")
    for name in only_targets:
        if name not in clusters:
            raise OptionError(f"there is no cluster {name} among {', '.join(clusters)}")
    for cluster in clusters:
        if not given.get(f"{cluster}.bootstrap.servers"):
            raise OptionError(f"there is no setting {cluster}.bootstrap.servers")
    _refuse_unsupported(given, clusters)
    _warn_of_unknown(given, clusters)
    pairs = list(permutations(clusters, 2))
    enabled = {pair for pair in pairs if _flag("enabled", given.get(f"{pair[0]}->{pair[1]}.enabled", "false"))}
    flows = [_flow(given, source, target, (source, target) in enabled) for source, target in pairs]
    flows = [flow for flow in flows if flow.enabled or flow.emit_heartbeats]
    if not enabled:
        raise OptionError(f"nothing is mirrored: no pair is enabled ({clusters[0]}->{clusters[-1]}.enabled = true)")
    _refuse_circles([flow for flow in flows if flow.enabled])
    wanted = set(only_targets)
    return [_with_others(flow, flows) for flow in flows if not wanted or flow.target in wanted]


def simple_flow(
    consumer: Mapping[str, str],
    producer: Mapping[str, str],
    include: str,
    *,
    abort_on_failure: bool = True,
    **more: Any,
) -> Flow:
    """What the older MirrorMaker does: topics that match, under their own names, and nothing else."""
    for which, settings in (("--consumer.config", consumer), ("--producer.config", producer)):
        if not settings.get("bootstrap.servers"):
            raise OptionError(f"{which} has no bootstrap.servers")
    group = consumer.get("group.id", "").strip()
    if not group:
        raise OptionError("--consumer.config has no group.id")
    reset = consumer.get("auto.offset.reset", "latest").strip()
    if reset not in ("earliest", "latest"):
        raise OptionError(f"auto.offset.reset is earliest or latest, not {reset}")
    age = consumer.get("metadata.max.age.ms", "300000")
    if not age.isdigit():
        raise OptionError(f"metadata.max.age.ms must be a number of milliseconds, not '{age}'")
    flow = Flow(
        source="source",
        target="target",
        consumer=_consumer(consumer),
        producer={**PRODUCER_DEFAULTS, **_known(producer, PRODUCER_CONFIGS)},
        source_admin=_known(consumer, ADMIN_CONFIGS),
        target_admin=_known(producer, ADMIN_CONFIGS),
        topics=(include,),
        topics_exclude=(r"__.*",),
        policy_class="IdentityReplicationPolicy",
        replication_factor=-1,
        progress_group=group,
        reset=reset,
        refresh_topics=max(0.1, int(age) / 1000),
        sync_configs=False,
        emit_heartbeats=False,
        replicate_heartbeats=False,
        emit_offset_syncs=False,
        emit_checkpoints=False,
        abort_on_failure=abort_on_failure,
        **more,
    )
    _check(flow)
    return flow


def _flow(given: Mapping[str, str], source: str, target: str, enabled: bool) -> Flow:
    prefix = f"{source}->{target}."
    found: dict[str, Any] = {}
    for name, (field, kind) in _SETTINGS.items():
        for full in (f"{prefix}{name}", name):
            if full in given:
                found[field] = _read(full, given[full], kind)
                break
    # In MirrorMaker it is a setting of the workers that write to the target.
    exactly = f"{target}.exactly.once.source.support"
    if exactly in given and f"{prefix}exactly.once.source.support" not in given:
        found["exactly_once"] = _read(exactly, given[exactly], "exactly once")
    refresh = f"{prefix}{_REFRESH_GROUPS}"
    if not _flag(_REFRESH_GROUPS, given.get(refresh, given.get(_REFRESH_GROUPS, "true"))):
        # Once, at the start.
        found["refresh_groups"] = 0.0
    factors = {}
    for which in _FACTORS:
        name = f"{which}.topic.replication.factor"
        text = given.get(f"{prefix}{name}", given.get(name))
        if text is not None:
            factors[which] = int(_read(name, text, "number"))
    for required, dependent in (("emit_offset_syncs", "emit_checkpoints"), ("emit_checkpoints", "sync_groups")):
        if not found.get(required, True):
            found[dependent] = False
    Policy(found.get("policy_class", DEFAULT), found.get("separator", "."))
    consumer = _client(given, source, prefix, "source", "consumer")
    reset = consumer.get("auto.offset.reset", "earliest")
    if reset not in ("earliest", "latest"):
        raise OptionError(f"auto.offset.reset of {prefix[:-1]} is earliest or latest, not {reset}")
    flow = Flow(
        source=source,
        target=target,
        consumer=_consumer(consumer),
        producer={**PRODUCER_DEFAULTS, **_client(given, target, prefix, "target", "producer")},
        source_admin=_client(given, source, prefix, "source", "admin"),
        target_admin=_client(given, target, prefix, "target", "admin"),
        reset=reset,
        enabled=enabled,
        internal_factors=factors,
        **found,
    )
    _check(flow)
    return flow


def _check(flow: Flow) -> None:
    # A wrong pattern is found now, not when the first topic is looked at.
    assert flow.topic_filter and flow.group_filter and flow.config_filter
    if flow.enabled and flow.exactly_once and not flow.state_dir:
        raise OptionError("exactly once needs state.dir: a folder for what has to be known after a crash")
    if flow.exactly_once and not flow.abort_on_failure:
        raise OptionError(
            "exactly once cannot leave out records that the target refuses: abort.on.send.failure is true"
        )


def _client(given: Mapping[str, str], cluster: str, pair: str, side: str, kind: str) -> dict[str, str]:
    table = _CLIENTS[kind]
    found: dict[str, str] = {}
    for prefix in (
        f"{kind}.", f"{side}.{kind}.", f"{cluster}.", f"{cluster}.{kind}.", f"{pair}{kind}.", f"{pair}{side}.{kind}.",
    ):  # fmt: skip
        for name, value in given.items():
            if name.startswith(prefix):
                found[name[len(prefix) :]] = value
    return _known(found, table)


def _known(given: Mapping[str, str], table: Any) -> dict[str, str]:
    return {name: value.strip() for name, value in given.items() if table.get(name) is not None}


def _consumer(given: Mapping[str, str]) -> dict[str, str]:
    """Where reading begins, and what is committed, is the mirror's affair."""
    ours = ("group.id", "auto.offset.reset", "enable.auto.commit", "auto.commit.interval.ms", "group.instance.id")
    theirs = ("key.deserializer", "value.deserializer", "interceptor.classes", "partition.assignment.strategy")
    known = _known(given, CONSUMER_CONFIGS)
    return {**CONSUMER_DEFAULTS, **{name: value for name, value in known.items() if name not in (*ours, *theirs)}}


def _read(name: str, text: str, kind: str) -> Any:
    text = text.strip()
    match kind:
        case "list":
            return patterns(text)
        case "flag":
            return _flag(name, text)
        case "number":
            return int(_number(name, text))
        case "seconds":
            return float(_number(name, text))
        case "location":
            if text not in ("source", "target"):
                raise OptionError(f"{name} is source or target, not {text}")
        case "exactly once":
            if text not in ("enabled", "disabled", "preparing"):
                raise OptionError(f"{name} is enabled or disabled, not {text}")
            return text == "enabled"
    return text


def _flag(name: str, text: str) -> bool:
    found = {"true": True, "false": False}.get(text.strip().lower())
    if found is None:
        raise OptionError(f"{name} is true or false, not {text}")
    return found


def _number(name: str, text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise OptionError(f"{name} must be a whole number, not '{text}'") from None


def _refuse_circles(flows: list[Flow]) -> None:
    """Two flows with names kept that have the very same topics: nothing would be left to mirror."""
    for flow, other in permutations(flows, 2):
        if (
            flow.policy.keeps_names
            and (flow.source, flow.target) == (other.target, other.source)
            and (flow.topics, flow.topics_exclude) == (other.topics, other.topics_exclude)
        ):
            raise OptionError(
                f"{flow.name} and {other.name} have the same topics and IdentityReplicationPolicy keeps their names: "
                "every record would go round in circles. Give each its own topics, or use DefaultReplicationPolicy"
            )


def _with_others(flow: Flow, flows: list[Flow]) -> Flow:
    others = tuple(
        (one.source, one.target, one.topics, one.topics_exclude) for one in flows if one.enabled and one is not flow
    )
    return replace(flow, others=others)


def _refuse_unsupported(given: Mapping[str, str], clusters: Iterable[str]) -> None:
    """What a user excludes by such a setting would be mirrored if it were ignored."""
    prefixes = ["", *(f"{cluster}." for cluster in clusters)]
    prefixes += [f"{source}->{target}." for source, target in permutations(clusters, 2)]
    for prefix in prefixes:
        for name, accepted in _ONLY.items():
            value = given.get(f"{prefix}{name}", "").strip()
            if value and value not in accepted:
                allowed = f" (only {min(accepted, key=len)})" if accepted else ""
                raise OptionError(f"{prefix}{name} = {value} is not supported{allowed}: remove it")


def _warn_of_unknown(given: Mapping[str, str], clusters: Iterable[str]) -> None:
    pairs = [f"{source}->{target}." for source, target in permutations(clusters, 2)]
    factors = {f"{which}.topic.replication.factor" for which in _FACTORS}
    known = {*_SETTINGS, *_WITHOUT_EFFECT, *_ONLY, _REFRESH_GROUPS, *factors}
    clients = ("consumer.", "producer.", "admin.", "source.", "target.")
    for full in sorted(given):
        name = next((full[len(pair) :] for pair in pairs if full.startswith(pair)), full)
        of_cluster = name == full and any(full.startswith(f"{cluster}.") for cluster in clusters)
        if full == "clusters" or full.startswith("spark.") or of_cluster or name.startswith(clients):
            continue
        if name not in known:
            near = difflib.get_close_matches(name, known, 1)
            log.warning("%s is no setting%s", full, f"; did you mean {near[0]}?" if near else "")
        elif name == "sync.topic.acls.enabled" and given[full].strip().lower() == "true":
            log.warning("ACLs are not synced: %s has no effect", full)
