"""Converts MirrorMaker's configuration to flows. No I/O, except that of configuration providers.

The configuration of MirrorMaker 2 lists the clusters (`clusters = A, B`). It has connection
settings for each cluster (`A.bootstrap.servers`) and settings for each pair of clusters
(`A->B.enabled`, `A->B.topics`). A setting of a pair takes precedence over the same setting without
a pair. The prefixes of client settings are `consumer.`, `A.consumer.` and `A->B.consumer.`, and
likewise for `producer` and `admin`. `A.` sets a setting of all clients of a cluster.
"""

from __future__ import annotations

import difflib
import logging
import os
import sys
from collections.abc import Iterable, Mapping
from dataclasses import replace
from itertools import permutations
from typing import Any

from kavka.client.admin_config import ADMIN_CONFIGS
from kavka.client.classes import split_name
from kavka.client.config import supported_settings
from kavka.client.consumer_config import CONSUMER_CONFIGS
from kavka.client.producer_config import PRODUCER_CONFIGS
from kavka.pipeline.connect.errors import ConfigErrors, ConnectError
from kavka.pipeline.connect.loading import Declared, items_of
from kavka.pipeline.connect.providers import NAMES, Providers
from kavka.pipeline.mirror.flow import Flow, OtherFlow
from kavka.pipeline.mirror.policy import DEFAULT, FILTERS, IDENTITY, is_of_kafka, patterns
from kavka.pipeline.spark.errors import OptionError

logger = logging.getLogger(__name__)

# As in MirrorMaker, sending is retried in order and without a limit.
PRODUCER_DEFAULTS = {
    "acks": "all",
    "delivery.timeout.ms": str(0x7FFFFFFF),
    "max.block.ms": str(0x7FFFFFFF),
    "max.request.size": str(64 * 1024 * 1024),
    "batch.size": str(256 * 1024),
    "batch.max.bytes": str(512 * 1024),
    "linger.ms": "5",
}
# Batches are copied without decoding, so large responses cost little and need fewer requests.
CONSUMER_DEFAULTS = {"fetch.max.bytes": str(16 * 1024 * 1024), "max.partition.fetch.bytes": str(4 * 1024 * 1024)}

# Settings of a pair or of all pairs: the field of `Flow` and the format.
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
    "topic.filter.class": ("topic_filter_class", "text"),
    "group.filter.class": ("group_filter_class", "text"),
    "config.property.filter.class": ("config_filter_class", "text"),
    "replication.factor": ("replication_factor", "number"),
    "refresh.topics.enabled": ("create_topics", "flag"),
    "refresh.topics.interval.seconds": ("refresh_topics", "seconds"),
    "sync.topic.configs.enabled": ("sync_configs", "flag"),
    "sync.topic.configs.interval.seconds": ("sync_configs_interval", "seconds"),
    "sync.topic.acls.enabled": ("sync_acls", "flag"),
    "sync.topic.acls.interval.seconds": ("sync_acls_interval", "seconds"),
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
    "group.id": ("sharing_group", "text"),
    "session.timeout.ms": ("session_timeout", "milliseconds"),
    "heartbeat.interval.ms": ("heartbeat_interval", "milliseconds"),
    # Additions of Kavka.
    "sync.topic.deletions.enabled": ("delete_topics", "flag"),
    "state.dir": ("state_dir", "text"),
    "max.records.per.batch": ("records_per_batch", "number"),
    "progress.group.id": ("progress_group", "text"),
}
_REFRESH_GROUPS = "refresh.groups.enabled"
_FACTORS = ("heartbeats", "checkpoints", "offset-syncs")
_BYTES = "org.apache.kafka.connect.converters.ByteArrayConverter"
# Settings that the policy reads.
_POLICY = {
    "replication.policy.separator": "text",
    "replication.policy.internal.topic.separator.enabled": "flag",
}
_CLASSES = ("replication.policy.class", *FILTERS)
# Unsupported settings that would change the mirrored data. Only values that match the behaviour of
# the mirror are accepted.
_ONLY: dict[str, frozenset[str]] = {
    "forwarding.admin.class": frozenset({"ForwardingAdmin", "org.apache.kafka.clients.admin.ForwardingAdmin"}),
    "use.defaults.from": frozenset({"target"}),
    "errors.tolerance": frozenset({"none"}),
    **dict.fromkeys(
        ("key.converter", "value.converter", "header.converter"), frozenset({"ByteArrayConverter", _BYTES})
    ),
    **dict.fromkeys(("transforms", "predicates"), frozenset()),
}
_NO_CONNECT = "the mirror does not run in Kafka Connect"
_NO_REST = "the mirror has no REST interface, only --status"
# Settings of MirrorMaker and of its Connect workers that have no effect here, and the reason.
_WITHOUT_EFFECT: dict[str, str] = {
    **dict.fromkeys(("admin.timeout.ms", "consumer.poll.timeout.ms"), "set the timeouts of the clients"),
    "bootstrap.servers": "each cluster has its own, for example A.bootstrap.servers",
    "offset.lag.max": "offset syncs are written with every batch",
    "use.incremental.alter.configs": "configurations are always altered incrementally",
    "add.source.alias.to.metrics": "the metrics are labelled by flow",
    **dict.fromkeys(("metric.reporters", "auto.include.jmx.reporter"), "Prometheus reads the metrics of the mirror"),
    **dict.fromkeys(("source.cluster.alias", "target.cluster.alias"), "the names of pairs have the aliases"),
    **dict.fromkeys(
        ("errors.log.enable", "errors.log.include.messages", "errors.retry.timeout", "errors.retry.delay.max.ms"),
        "errors are logged, and requests are retried without a limit",
    ),
    **dict.fromkeys(
        ("listeners", "dedicated.mode.enable.internal.rest", "access.control.allow.methods",
         "access.control.allow.origin", "response.http.headers.config", "rest.advertised.host.name",
         "rest.advertised.listener", "rest.advertised.port", "ssl.client.auth"),
        _NO_REST,
    ),
    **dict.fromkeys(
        ("tasks.max", "tasks.max.enforce", "name", "connector.class", "config.action.reload", "rebalance.timeout.ms"),
        _NO_CONNECT,
    ),
}  # fmt: skip
# Prefixes of settings of Connect's workers, and of converters.
_OF_WORKERS = (
    "task.", "worker.", "offset.storage.", "status.storage.", "config.storage.", "offset.flush.", "key.converter.",
    "value.converter.", "header.converter.",
)  # fmt: skip
# In MirrorMaker these are settings of the workers that write to the target.
_OF_TARGET = ("exactly.once.source.support", "group.id", "session.timeout.ms", "heartbeat.interval.ms")
_CLIENTS = {"consumer": CONSUMER_CONFIGS, "producer": PRODUCER_CONFIGS, "admin": ADMIN_CONFIGS}


_SECURITY = ("security.", "ssl.", "sasl.", "enable.ssl.")


def flows_of(settings: Mapping[str, str], only_targets: Iterable[str] = ()) -> list[Flow]:
    """Return the flows of all pairs that are enabled or write heartbeats. If `only_targets` is not
    empty, only the flows to these targets. Placeholders of `config.providers` are replaced by their
    values. Raises OptionError if a setting is invalid."""
    settings = _resolved(settings)
    clusters = patterns(settings.get("clusters", ""))
    if not clusters:
        raise OptionError('the setting "clusters" is missing')
    if len(set(clusters)) != len(clusters):
        raise OptionError("clusters lists a cluster twice")
    for name in only_targets:
        if name not in clusters:
            raise OptionError(f"the cluster {name} is not one of {', '.join(clusters)}")
    for cluster in clusters:
        if not settings.get(f"{cluster}.bootstrap.servers"):
            raise OptionError(f"the setting {cluster}.bootstrap.servers is missing")
    _reject_unsupported(settings, clusters)
    _warn_of_unknown(settings, clusters)
    pairs = list(permutations(clusters, 2))
    enabled = {pair for pair in pairs if _flag("enabled", settings.get(f"{pair[0]}->{pair[1]}.enabled", "false"))}
    _add_to_path(items_of(settings.get("plugin.path", "")))
    declared = Declared.of(settings)
    flows = [_flow(settings, source, target, (source, target) in enabled, declared) for source, target in pairs]
    flows = [flow for flow in flows if flow.enabled or flow.emit_heartbeats]
    if not enabled:
        raise OptionError(f"no pair of clusters is enabled ({clusters[0]}->{clusters[-1]}.enabled = true)")
    _reject_loops([flow for flow in flows if flow.enabled])
    targets = set(only_targets)
    return [_with_others(flow, flows) for flow in flows if not targets or flow.target in targets]


def _resolved(settings: Mapping[str, str]) -> dict[str, str]:
    """Replace placeholders like `${file:/etc/secrets:password}`, and hide the values in the log."""
    if not settings.get(NAMES):
        return dict(settings)
    try:
        # A provider may be a plugin.
        _add_to_path(items_of(settings.get("plugin.path", "")))
        providers = Providers.of(settings, Declared.of(settings))
        resolved = providers.resolve(settings, "The settings of the mirror")
    except ConfigErrors as error:
        raise OptionError("; ".join(message for messages in error.errors.values() for message in messages)) from None
    except ConnectError as error:
        raise OptionError(str(error)) from None
    for handler in logging.getLogger().handlers:
        handler.addFilter(providers.secrets)
    return resolved


def simple_flow(
    consumer: Mapping[str, str],
    producer: Mapping[str, str],
    include: str,
    *,
    abort_on_failure: bool = True,
    **more: Any,
) -> Flow:
    """Return the flow of MirrorMaker 1, which copies matching topics under the same names and
    nothing else. Raises OptionError if a setting is invalid."""
    for option, settings in (("--consumer.config", consumer), ("--producer.config", producer)):
        if not settings.get("bootstrap.servers"):
            raise OptionError(f"{option} has no bootstrap.servers")
    group = consumer.get("group.id", "").strip()
    if not group:
        raise OptionError("--consumer.config has no group.id")
    reset = consumer.get("auto.offset.reset", "latest").strip()
    if reset not in ("earliest", "latest"):
        raise OptionError(f"auto.offset.reset must be earliest or latest, not {reset}")
    age = consumer.get("metadata.max.age.ms", "300000")
    if not age.isdigit():
        raise OptionError(f"metadata.max.age.ms must be a number of milliseconds, not '{age}'")
    flow = Flow(
        source="source",
        target="target",
        consumer=_consumer(consumer),
        producer={**PRODUCER_DEFAULTS, **_supported_settings(producer, PRODUCER_CONFIGS)},
        source_admin=_supported_settings(consumer, ADMIN_CONFIGS),
        target_admin=_supported_settings(producer, ADMIN_CONFIGS),
        topics=(include,),
        topics_exclude=(r"__.*",),
        policy_class="IdentityReplicationPolicy",
        replication_factor=-1,
        progress_group=group,
        reset=reset,
        refresh_topics=max(0.1, int(age) / 1000),
        sync_configs=False,
        sync_acls=False,
        emit_heartbeats=False,
        replicate_heartbeats=False,
        emit_offset_syncs=False,
        emit_checkpoints=False,
        abort_on_failure=abort_on_failure,
        **more,
    )
    _check(flow)
    return flow


def _flow(settings: Mapping[str, str], source: str, target: str, enabled: bool, declared: Declared) -> Flow:
    prefix = f"{source}->{target}."
    fields: dict[str, Any] = {}
    for name, (field, kind) in _SETTINGS.items():
        for full_name in (f"{prefix}{name}", *([f"{target}.{name}"] if name in _OF_TARGET else []), name):
            if full_name in settings:
                fields[field] = _read(full_name, settings[full_name], kind)
                break
    refresh_name = f"{prefix}{_REFRESH_GROUPS}"
    if not _flag(_REFRESH_GROUPS, settings.get(refresh_name, settings.get(_REFRESH_GROUPS, "true"))):
        # An interval of 0: the groups are listed once, at the start.
        fields["refresh_groups"] = 0.0
    factors = {}
    for topic in _FACTORS:
        name = f"{topic}.topic.replication.factor"
        text = settings.get(f"{prefix}{name}", settings.get(name))
        if text is not None:
            factors[topic] = int(_read(name, text, "number"))
    for required, dependent in (("emit_offset_syncs", "emit_checkpoints"), ("emit_checkpoints", "sync_groups")):
        if not fields.get(required, True):
            fields[dependent] = False
    fields["settings"] = _settings_of_classes(settings, prefix, declared)
    consumer = _client(settings, source, prefix, "source", "consumer")
    reset = consumer.get("auto.offset.reset", "earliest")
    if reset not in ("earliest", "latest"):
        raise OptionError(f"auto.offset.reset of {prefix[:-1]} must be earliest or latest, not {reset}")
    flow = Flow(
        source=source,
        target=target,
        consumer=_consumer(consumer),
        producer={**PRODUCER_DEFAULTS, **_client(settings, target, prefix, "target", "producer")},
        source_admin=_client(settings, source, prefix, "source", "admin"),
        target_admin=_client(settings, target, prefix, "target", "admin"),
        reset=reset,
        enabled=enabled,
        internal_factors=factors,
        **fields,
    )
    _check(flow)
    return flow


def _settings_of_classes(settings: Mapping[str, str], prefix: str, declared: Declared) -> dict[str, str]:
    """Return the settings that the policy and the filters of a pair receive. Clients' settings are
    not among them: they may contain secrets. Raises OptionError if a class is not declared."""
    own = {name: value for name, value in settings.items() if "->" not in name}
    own |= {name.removeprefix(prefix): value for name, value in settings.items() if name.startswith(prefix)}
    for option in _CLASSES:
        name = own.get(option, "").strip()
        if name and not is_of_kafka(name, *((DEFAULT, IDENTITY) if option == _CLASSES[0] else (FILTERS[option],))):
            try:
                declared.require(split_name(name)[0])
            except ImportError as error:
                raise OptionError(f"{option} = {name}: {error}") from None
    for name, kind in _POLICY.items():
        _read(name, own.get(name, "true" if kind == "flag" else "."), kind)
    names = {*_POLICY, *_CLASSES, *(name for name, (_, kind) in _SETTINGS.items() if kind == "list")}
    custom = any(own.get(option) for option in _CLASSES)
    clusters = patterns(settings.get("clusters", ""))
    hidden = (*_SECURITY, "consumer.", "producer.", "admin.", "source.", "target.", "config.providers", "spark.")
    return {
        name: value
        for name, value in own.items()
        if name in names or (custom and not name.startswith((*hidden, *(f"{cluster}." for cluster in clusters))))
    }


def _add_to_path(folders: Iterable[str]) -> None:
    """Let this process, and the processes that Spark starts on this machine, import from
    folders."""
    for folder in folders:
        if folder not in sys.path:
            sys.path.insert(0, folder)
            os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [folder, os.environ.get("PYTHONPATH")]))


def _check(flow: Flow) -> None:
    # Create the objects and compile the patterns, which rejects invalid ones.
    assert flow.policy and flow.topic_filter and flow.group_filter and flow.config_filter
    if flow.sharing_group and not 0 < flow.heartbeat_interval < flow.session_timeout:
        raise OptionError("heartbeat.interval.ms must be less than session.timeout.ms")
    if flow.enabled and flow.exactly_once and not flow.state_dir:
        raise OptionError("exactly once requires state.dir, a persistent folder for Spark's checkpoints")
    if flow.exactly_once and not flow.abort_on_failure:
        raise OptionError(
            "exactly once cannot skip records that the target rejects: abort.on.send.failure must be true"
        )


def _client(settings: Mapping[str, str], cluster: str, pair: str, side: str, kind: str) -> dict[str, str]:
    table = _CLIENTS[kind]
    # As in MirrorMaker, settings of security without a prefix apply to all clusters.
    client: dict[str, str] = {name: value for name, value in settings.items() if name.startswith(_SECURITY)}
    for prefix in (
        f"{kind}.", f"{side}.{kind}.", f"{cluster}.", f"{cluster}.{kind}.", f"{pair}{kind}.", f"{pair}{side}.{kind}.",
    ):  # fmt: skip
        for name, value in settings.items():
            if name.startswith(prefix):
                client[name[len(prefix) :]] = value
    return _supported_settings(client, table)


def _supported_settings(settings: Mapping[str, str], table: Any) -> dict[str, str]:
    return {name: value.strip() for name, value in supported_settings(settings, table).items()}


def _consumer(settings: Mapping[str, str]) -> dict[str, str]:
    """Return the consumer settings without those that the mirror determines or cannot use."""
    determined = {"group.id", "auto.offset.reset", "enable.auto.commit", "auto.commit.interval.ms", "group.instance.id"}
    unused = {"key.deserializer", "value.deserializer", "interceptor.classes", "partition.assignment.strategy"}
    supported = _supported_settings(settings, CONSUMER_CONFIGS)
    return {**CONSUMER_DEFAULTS, **{name: supported[name] for name in supported if name not in determined | unused}}


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
        case "milliseconds":
            return _number(name, text) / 1000
        case "location":
            if text not in ("source", "target"):
                raise OptionError(f"{name} must be source or target, not {text}")
        case "exactly once":
            if text not in ("enabled", "disabled", "preparing"):
                raise OptionError(f"{name} must be enabled or disabled, not {text}")
            return text == "enabled"
    return text


def _flag(name: str, text: str) -> bool:
    value = {"true": True, "false": False}.get(text.strip().lower())
    if value is None:
        raise OptionError(f"{name} must be true or false, not {text}")
    return value


def _number(name: str, text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise OptionError(f"{name} must be a whole number, not '{text}'") from None


def _reject_loops(flows: list[Flow]) -> None:
    """Raise OptionError for two opposite flows with unchanged names and the same topics. Neither
    could mirror a topic."""
    for flow, other in permutations(flows, 2):
        if (
            flow.policy.keeps_names
            and (flow.source, flow.target) == (other.target, other.source)
            and (flow.topics, flow.topics_exclude) == (other.topics, other.topics_exclude)
        ):
            raise OptionError(
                f"{flow.name} and {other.name} have the same topics, and IdentityReplicationPolicy keeps their names: "
                "every record would loop forever. Use different topics, or DefaultReplicationPolicy"
            )


def _with_others(flow: Flow, flows: list[Flow]) -> Flow:
    others = tuple(
        OtherFlow(
            other.source, other.target, other.topics, other.topics_exclude, other.topic_filter_class, other.settings
        )
        for other in flows
        if other.enabled and other is not flow
    )
    return replace(flow, others=others)


def _reject_unsupported(settings: Mapping[str, str], clusters: Iterable[str]) -> None:
    """Raise OptionError for settings in `_ONLY` with other values. Ignoring them could mirror data
    that the user wants to exclude."""
    prefixes = ["", *(f"{cluster}." for cluster in clusters)]
    prefixes += [f"{source}->{target}." for source, target in permutations(clusters, 2)]
    for prefix in prefixes:
        for name, accepted in _ONLY.items():
            value = settings.get(f"{prefix}{name}", "").strip()
            if value and value not in accepted:
                allowed = f" (only {min(accepted, key=len)})" if accepted else ""
                raise OptionError(f"{prefix}{name} = {value} is not supported{allowed}: remove it")


def _warn_of_unknown(settings: Mapping[str, str], clusters: Iterable[str]) -> None:
    pairs = [f"{source}->{target}." for source, target in permutations(clusters, 2)]
    factors = {f"{topic}.topic.replication.factor" for topic in _FACTORS}
    plugins = {"plugin.path", "plugin.modules"}
    names = {*_SETTINGS, *_WITHOUT_EFFECT, *_ONLY, *_POLICY, _REFRESH_GROUPS, "enabled", *factors, *plugins}
    clients = ("consumer.", "producer.", "admin.", "source.", "target.", "config.providers")
    has_classes = any(settings.get(f"{pair}{option}") for pair in ("", *pairs) for option in _CLASSES)
    for full_name in sorted(settings):
        name = next((full_name[len(pair) :] for pair in pairs if full_name.startswith(pair)), full_name)
        is_of_cluster = name == full_name and any(full_name.startswith(f"{cluster}.") for cluster in clusters)
        if name in _WITHOUT_EFFECT or name.startswith(_OF_WORKERS):
            logger.warning("%s has no effect: %s", full_name, _WITHOUT_EFFECT.get(name, _NO_CONNECT))
        elif full_name == "clusters" or full_name.startswith("spark.") or is_of_cluster or name.startswith(clients):
            continue
        elif name.startswith(_SECURITY):
            if not any(supported_settings({name: ""}, table) for table in _CLIENTS.values()):
                logger.warning("%s has no effect: the clients do not support it", full_name)
        elif name not in names and not has_classes:
            # A custom class may read any setting.
            matches = difflib.get_close_matches(name, names, 1)
            logger.warning("%s is not a setting%s", full_name, f"; did you mean {matches[0]}?" if matches else "")
