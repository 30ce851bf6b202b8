"""Alerts: active alerts, rules and past alerts."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from typing import Annotated
from urllib.parse import urlsplit

from starlette.responses import Response

from kavka.console.alerts import Alerts, Event, LastMessage
from kavka.console.auth import Role
from kavka.console.cluster import ActiveAlert
from kavka.console.context import Context, check_confirmation, fingerprint
from kavka.console.errors import Refused
from kavka.console.registry import Bounds, Done, action, query
from kavka.console.rules import KINDS, Format, Kind, Rule
from kavka.console.views import View, page

MAX_RULES = 1000
MAX_SILENCE_M = 30 * 24 * 60
DAY_S = 86400
MAX_SHOWN_EVENTS = 100


@dataclass(frozen=True, slots=True)
class RuleRow:
    """A rule. Only admins see the full `webhook`, since its URL may contain secrets. Other users
    see its host. `told` is the last message to the webhook."""

    id: int
    kind: str
    help: str
    subject: str
    threshold: float
    unit: str
    for_s: float
    webhook: str
    enabled: bool
    raised: int
    format: str
    silenced_until: float | None
    told: LastMessage | None
    seen: str


def alerts_of(context: Context) -> Alerts:
    return context.console.alerts[context.cluster.name]


@query("/alerts", "List the active alerts")
async def active_alerts(context: Context) -> list[ActiveAlert]:
    return list(context.cluster.alerts)


@query("/alerts/events", "List active and past alerts, newest first")
async def alert_events(
    context: Context, limit: Annotated[int, "Maximum number of alerts", Bounds(1, 10_000)] = 100
) -> list[Event]:
    return await alerts_of(context).events(limit)


@query("/alerts/rules", "List the alert rules")
async def alert_rules(context: Context) -> list[RuleRow]:
    alerts = alerts_of(context)
    may_see_webhook = context.user.role >= Role.ADMIN
    return [
        RuleRow(
            rule.id,
            rule.kind.value,
            KINDS[rule.kind].help,
            rule.subject if KINDS[rule.kind].subject else "",
            rule.threshold,
            KINDS[rule.kind].unit,
            rule.for_s,
            rule.webhook if may_see_webhook else urlsplit(rule.webhook).hostname or "",
            rule.enabled,
            sum(alert.rule == rule.id for alert in context.cluster.alerts),
            rule.format.value,
            rule.silenced_until if alerts.is_silenced(rule) else None,
            alerts.last_messages.get(rule.id),
            fingerprint(rule),
        )
        for rule in alerts.rules.values()
    ]


@action("/alerts/rules", "Add an alert rule", role=Role.ADMIN)
async def add_rule(
    context: Context,
    kind: Annotated[Kind, "The condition"],
    threshold: Annotated[float | None, "A higher value raises the alert. Default: that of the kind", Bounds(0)] = None,
    subject: Annotated[str, "The group or broker: a name, or a pattern with * and ?", Bounds(0, 255)] = "*",
    for_s: Annotated[float | None, "Seconds that the condition must last. Default: 0", Bounds(0, DAY_S)] = None,
    webhook: Annotated[str, "The http or https URL that receives the alert", Bounds(0, 2000)] = "",
    format: Annotated[Format, "json, or slack for Slack and compatible services"] = Format.JSON,
) -> Done:
    alerts = alerts_of(context)
    if len(alerts.rules) >= MAX_RULES:
        raise Refused(f"there are {MAX_RULES} rules already", 409)
    limit = KINDS[kind].threshold if threshold is None else threshold
    address = checked_webhook(webhook)
    await alerts.put(Rule(0, kind, subject.strip() or "*", limit, for_s or 0.0, address, format=format))
    return Done("the rule was added", f"/c/{context.cluster.name}/alerts")


@action("/alerts/rules/{rule}", "Enable or disable an alert rule", role=Role.ADMIN)
async def switch_rule(context: Context, rule: int, enabled: bool) -> Done:
    await alerts_of(context).put(replace(_rule(context, rule), enabled=enabled))
    return Done("the rule is enabled" if enabled else "the rule is disabled", f"/c/{context.cluster.name}/alerts")


@action("/alerts/rules/{rule}/silence", "Send no messages of an alert rule for some time")
async def silence_rule(
    context: Context,
    rule: int,
    minutes: Annotated[int, "Minutes from now. 0 ends the silence", Bounds(0, MAX_SILENCE_M)],
) -> Done:
    """Alerts are raised and stored as usual."""
    until = time.time() + minutes * 60 if minutes else 0.0
    await alerts_of(context).put(replace(_rule(context, rule), silenced_until=until))
    message = f"the rule is silenced for {minutes} min" if minutes else "the rule is not silenced any more"
    return Done(message, f"/c/{context.cluster.name}/alerts")


@action("/alerts/rules/{rule}/test", "Send a test message to the webhook of an alert rule", role=Role.ADMIN)
async def send_test_message(context: Context, rule: int) -> Done:
    current = _rule(context, rule)
    if not current.webhook:
        raise Refused("the rule has no webhook")
    outcome = await alerts_of(context).test(current)
    if outcome != "sent":
        raise Refused(f"the webhook did not accept the message: {outcome}", 502)
    return Done("the test message was sent", f"/c/{context.cluster.name}/alerts")


@action("/alerts/rules/{rule}/delete", "Delete an alert rule", role=Role.ADMIN)
async def delete_rule(
    context: Context,
    rule: int,
    confirm: Annotated[str, "The rule's number, typed again"],
    seen: Annotated[str, "The fingerprint of the page"] = "",
) -> Done:
    current = _rule(context, rule)
    check_confirmation(typed=confirm, name=str(rule), seen=seen, current=fingerprint(current))
    await alerts_of(context).remove(rule)
    return Done("the rule was deleted", f"/c/{context.cluster.name}/alerts")


def _rule(context: Context, rule_id: int) -> Rule:
    rule = alerts_of(context).rules.get(rule_id)
    if rule is None:
        raise Refused(f"there is no rule {rule_id}", 404)
    return rule


def checked_webhook(address: str) -> str:
    address = address.strip()
    if not address:
        return ""
    try:
        url = urlsplit(address)
        is_http = url.scheme in ("http", "https") and bool(url.hostname)
    except ValueError:
        is_http = False
    if not is_http or any(ord(c) <= 32 for c in address):
        raise Refused("a webhook is a URL that starts with http:// or https://", field="webhook")
    return address


@page("/alerts", "Alerts", nav="Alerts", icon="bell")
async def alerts_page(view: View) -> Response:
    context = view.context
    context.cluster.mark_viewed()
    return view.render(
        "alerts.html",
        rules=await alert_rules(context),
        events=await alert_events(context, MAX_SHOWN_EVENTS),
        kinds=KINDS,
        may_edit=context.user.role >= Role.ADMIN,
        may_silence=context.user.role >= Role.OPERATE,
    )
