"""Brokers: their partitions, disks and settings."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Annotated

from starlette.responses import Response

from kavka.client.admin.types import ConfigResource, ConfigSource
from kavka.common.broker_config import BROKER_CONFIGS
from kavka.console.auth import Role
from kavka.console.context import Context, check_confirmation, fingerprint
from kavka.console.entries import Setting, checked_change, settings
from kavka.console.errors import Refused, explain
from kavka.console.registry import Done, action, query
from kavka.console.state import LogDir, Sample
from kavka.console.views import View, page


@dataclass(frozen=True, slots=True)
class BrokerRow:
    """A broker. `leader_skew` and `replica_skew` are the deviation from an even share: 0.25 is a
    quarter more. `usable` is the smallest free space of its log directories, `total` the largest
    size of their disks."""

    id: int
    up: bool
    host: str
    port: int
    rack: str | None
    controller: bool
    leaders: int
    preferred: int
    """The number of partitions whose preferred leader is this broker."""
    replicas: int
    in_sync: int
    leader_skew: float
    replica_skew: float
    size: int | None
    usable: int | None
    total: int | None


def broker_rows(sample: Sample) -> list[BrokerRow]:
    """Return a row per broker of the cluster and per missing broker."""
    leaders: Counter[int] = Counter()
    preferred: Counter[int] = Counter()
    replicas: Counter[int] = Counter()
    in_sync: Counter[int] = Counter()
    for p in sample.partitions:
        leaders[p.leader] += 1
        preferred.update(p.replicas[:1])
        replicas.update(p.replicas)
        in_sync.update(p.isr)
    count = len(sample.nodes) or 1
    mean_leaders = sum(leaders[broker] for broker in sample.nodes) / count
    mean_replicas = sum(replicas[broker] for broker in sample.nodes) / count
    rows = []
    for broker in sorted({*sample.nodes, *sample.missing_brokers}):
        node = sample.nodes.get(broker)
        dirs = [d for d in sample.dirs.get(broker, ()) if d.usable is not None]
        rows.append(
            BrokerRow(
                broker,
                node is not None,
                node.host if node else "",
                node.port if node else -1,
                node.rack if node else None,
                broker == sample.controller,
                leaders[broker],
                preferred[broker],
                replicas[broker],
                in_sync[broker],
                leaders[broker] / mean_leaders - 1 if mean_leaders and node else 0.0,
                replicas[broker] / mean_replicas - 1 if mean_replicas and node else 0.0,
                sample.disk_of(broker),
                min((d.usable for d in dirs if d.usable is not None), default=None),
                max((d.total for d in dirs if d.total is not None), default=None),
            )
        )
    return rows


@query("/brokers", "List the brokers with their leaders, replicas and disks")
async def list_brokers(context: Context) -> list[BrokerRow]:
    return broker_rows(await context.cluster.state())


@query("/brokers/{broker}/dirs", "List the log directories of a broker")
async def log_dirs(context: Context, broker: int) -> list[LogDir]:
    return list((await context.cluster.state()).dirs.get(broker, ()))


@query("/brokers/{broker}/settings", "List the settings of a broker with help and allowed values")
async def broker_settings(context: Context, broker: int) -> list[Setting]:
    if broker not in (await context.cluster.state()).nodes:
        raise Refused(f"broker {broker} is not in the cluster", 404)
    resource = ConfigResource.broker(broker)
    configs = await context.admin.describe_configs(resource, include_documentation=True, timeout=10)
    return settings(configs[resource].values(), BROKER_CONFIGS, ConfigSource.DYNAMIC_BROKER_CONFIG)


@action("/brokers/{broker}/settings", "Change a dynamic setting of a broker", role=Role.ADMIN)
async def change_broker_setting(
    context: Context,
    broker: int,
    name: str,
    value: Annotated[str | None, "The new value"] = None,
    reset: Annotated[bool, "Remove the dynamic value"] = False,
    everywhere: Annotated[bool, "Set the default for all brokers"] = False,
    seen: Annotated[str, "The fingerprint of the displayed value"] = "",
) -> Done:
    setting, change = await checked_change(
        lambda: broker_settings(context, broker), "brokers", name, value, reset, seen
    )
    resource = ConfigResource.broker("" if everywhere else broker)
    await context.admin.incremental_alter_configs({resource: [change]})
    context.cluster.mark_stale()
    new_value = "changed" if setting.sensitive else value
    message = f"{name} was reset" if reset else f"{name} is {new_value}"
    return Done(message, f"/c/{context.cluster.name}/brokers/{broker}")


@action("/brokers/{broker}/forget", "Stop reporting a removed broker as missing", role=Role.ADMIN)
async def forget_broker(context: Context, broker: int, confirm: Annotated[str, "The broker's id"]) -> Done:
    """Does not change the cluster. A broker that is running or has replicas is rejected."""
    sample = await context.cluster.state()
    check_confirmation(typed=confirm, name=str(broker))
    if broker in sample.nodes:
        raise Refused(f"broker {broker} is running", 409)
    if any(broker in p.replicas for p in sample.partitions):
        raise Refused(f"partitions still have replicas on broker {broker}: move them first", 409)
    await context.cluster.forget_broker(broker)
    return Done(f"broker {broker} is no longer reported as missing", f"/c/{context.cluster.name}/brokers")


@page("/brokers", "Brokers", nav="Brokers", icon="server")
async def brokers_page(view: View) -> Response:
    return view.render("brokers.html", rows=await list_brokers(view.context))


@page("/brokers/{broker:int}", "Broker")
async def broker_page(view: View) -> Response:
    broker_id = int(view.path("broker"))
    context = view.context
    sample = await context.cluster.state()
    row = next((row for row in broker_rows(sample) if row.id == broker_id), None)
    if row is None:
        raise Refused(f"there is no broker {broker_id}", 404)
    entries: list[Setting] = []
    problem = ""
    if row.up:
        try:
            entries = await broker_settings(context, broker_id)
        except Exception as error:
            explanation = explain(error)
            if explanation is None:
                raise
            problem = explanation[1]
    return view.render(
        "broker.html",
        row=row,
        dirs=sample.dirs.get(broker_id, ()),
        entries=entries,
        problem=problem,
        fingerprint=fingerprint,
        may_edit=context.user.role >= Role.ADMIN,
    )
