"""Alerts: the rules of a cluster, the raised alerts, and the messages to webhooks.

A violation of a rule is pending until it has lasted `for_s`. Then the alert is raised: the console
stores an event, shows a line on every page and sends a message to the rule's webhook. A second
message reports the end of the alert. Raised alerts survive a restart and are not sent again.

A silenced rule sends no messages. If an alert that was raised meanwhile is still raised at the end
of the silence, its message is sent then.
"""

from __future__ import annotations

import asyncio
import json
import logging
import sqlite3
import time
import urllib.error
import urllib.request
from dataclasses import dataclass, replace
from typing import Any

from kavka.common.metrics import Counter, Family
from kavka.console.cluster import ActiveAlert, ClusterHandle
from kavka.console.rules import DEFAULTS, KINDS, Format, Kind, Rule, violations_of

logger = logging.getLogger(__name__)

WEBHOOK_TIMEOUT_S = 10.0
WEBHOOK_ATTEMPTS, WEBHOOK_RETRY_DELAY_S = 3, 5.0
MAX_QUEUED_MESSAGES = 1000

COLUMNS = "kind, subject, threshold, for_s, webhook, enabled, format, silenced_until"

Key = tuple[int, str]


@dataclass(frozen=True, slots=True)
class Event:
    """A raised alert; `ended` is None until it ends."""

    id: int
    rule: int
    subject: str
    text: str
    began: float
    ended: float | None


@dataclass(frozen=True, slots=True)
class LastMessage:
    """The last message to a webhook, and its outcome."""

    at: float
    outcome: str


class Alerts:
    """Owns the rules and the raised alerts of one cluster. Only the event loop may call it.
    Rules and events are in the store. A crash loses unsent messages, and pending violations
    start again."""

    def __init__(self, cluster: ClusterHandle, sent: Family[Counter]) -> None:
        self.cluster = cluster
        self._sent = sent
        self._unsent: set[Key] = set()
        """Raised alerts whose message was not sent because the rule is silenced."""
        self.rules: dict[int, Rule] = {}
        self.last_messages: dict[int, LastMessage] = {}
        self._pending: dict[Key, float] = {}
        self._raised: dict[Key, Event] = {}
        self._messages: asyncio.Queue[tuple[Rule, dict[str, object]]] = asyncio.Queue(MAX_QUEUED_MESSAGES)
        self._sender: asyncio.Task[None] | None = None

    async def load(self) -> None:
        """Load the rules and the raised alerts, and start sending messages. A new cluster gets the
        default rules."""
        store, name = self.cluster.store, self.cluster.name

        def read(db: sqlite3.Connection) -> tuple[list[tuple[Any, ...]], list[tuple[Any, ...]]]:
            defaults_key = f"rules-made/{name}"
            if not db.execute("SELECT 1 FROM setting WHERE name = ?", (defaults_key,)).fetchone():
                db.execute("INSERT INTO setting VALUES (?, '1')", (defaults_key,))
                for rule in DEFAULTS:
                    _insert(db, name, rule)
            rules = db.execute(
                f"SELECT id, {COLUMNS} FROM rule WHERE cluster = ? ORDER BY id",
                (name,),
            ).fetchall()
            events = db.execute(
                "SELECT id, rule, subject, text, began, ended FROM event WHERE cluster = ? AND ended IS NULL", (name,)
            ).fetchall()
            return rules, events

        rules, events = await store.run(read)
        kinds = {kind.value for kind in Kind}
        self.rules = {
            row[0]: Rule(row[0], Kind(row[1]), row[2], row[3], row[4], row[5], bool(row[6]), Format(row[7]), row[8])
            for row in rules
            if row[1] in kinds
        }
        self._raised = {(row[1], row[2]): Event(*row) for row in events}
        self._publish()
        self._sender = asyncio.create_task(self._send())

    async def close(self) -> None:
        if self._sender is not None:
            self._sender.cancel()
            await asyncio.gather(self._sender, return_exceptions=True)

    # --- rules

    async def put(self, rule: Rule) -> Rule:
        """Add the rule if its id is 0, otherwise replace it. Returns the rule with its id."""
        name = self.cluster.name

        def write(db: sqlite3.Connection) -> int:
            if not rule.id:
                return _insert(db, name, rule)
            db.execute(
                f"UPDATE rule SET ({COLUMNS}) = (?, ?, ?, ?, ?, ?, ?, ?) WHERE id = ?",
                (*_columns(rule), rule.id),
            )
            return rule.id

        stored = replace(rule, id=await self.cluster.store.run(write))
        self.rules[stored.id] = stored
        await self.evaluate()
        return stored

    async def remove(self, rule: int) -> None:
        await self.cluster.store.run(lambda db: db.execute("DELETE FROM rule WHERE id = ?", (rule,)))
        self.rules.pop(rule, None)
        self.last_messages.pop(rule, None)
        await self.evaluate()

    async def events(self, limit: int) -> list[Event]:
        """Return the newest events of the cluster, newest first."""
        rows = await self.cluster.store.run(
            lambda db: db.execute(
                "SELECT id, rule, subject, text, began, ended FROM event WHERE cluster = ? ORDER BY id DESC LIMIT ?",
                (self.cluster.name, limit),
            ).fetchall()
        )
        return [Event(*row) for row in rows]

    # --- evaluation

    async def evaluate(self) -> None:
        """Evaluate the rules after a sample or a change of rules. Raises and ends alerts. The
        alerts of a rule that cannot be evaluated stay as they are."""
        now = time.time()
        violations: dict[Key, str] = {}
        unknown_rules: set[int] = set()
        for rule in self.rules.values():
            if not rule.enabled:
                continue
            subjects = violations_of(rule, self.cluster.sample, self.cluster.error)
            if subjects is None:
                unknown_rules.add(rule.id)
                continue
            violations.update({(rule.id, subject): text for subject, text in subjects.items()})
        self._pending = {
            key: began for key, began in self._pending.items() if key in violations or key[0] in unknown_rules
        }
        for key, text in violations.items():
            began = self._pending.setdefault(key, now)
            if key not in self._raised and now - began >= self.rules[key[0]].for_s:
                await self._raise(key, text, now)
        for key, event in list(self._raised.items()):
            if key in violations:
                if violations[key] != event.text:
                    self._raised[key] = replace(event, text=violations[key])
                if key in self._unsent and not self.is_silenced(self.rules[key[0]]):
                    self._unsent.discard(key)
                    self._enqueue(self.rules[key[0]], "raised", key[1], violations[key], event.began)
            elif key[0] not in unknown_rules:
                await self._end(key, event, now)
        self._publish()

    async def _raise(self, key: Key, text: str, now: float) -> None:
        row = (self.cluster.name, key[0], key[1], text, now)
        insert = "INSERT INTO event (cluster, rule, subject, text, began) VALUES (?, ?, ?, ?, ?)"
        event_id: int | None = 0
        try:
            event_id = await self.cluster.store.run(lambda db: db.execute(insert, row).lastrowid)
        except sqlite3.Error as error:
            # Raise the alert anyway: it may be about the disk that is full.
            logger.error("Cannot store an alert (%s): %s", error, text)
        self._raised[key] = Event(event_id or 0, key[0], key[1], text, now, None)
        rule = self.rules[key[0]]
        if self.is_silenced(rule):
            self._unsent.add(key)
        else:
            self._enqueue(rule, "raised", key[1], text, now)

    async def _end(self, key: Key, event: Event, now: float) -> None:
        row = (now, event.text, event.id)
        try:
            await self.cluster.store.run(
                lambda db: db.execute("UPDATE event SET ended = ?, text = ? WHERE id = ?", row)
            )
        except sqlite3.Error as error:
            logger.error("Cannot store the end of an alert (%s): %s", error, event.text)
        del self._raised[key]
        rule = self.rules.get(key[0])
        if key in self._unsent:
            self._unsent.discard(key)
        elif rule is not None and not self.is_silenced(rule):
            self._enqueue(rule, "ended", key[1], event.text, now)

    def _publish(self) -> None:
        active = []
        for (rule_id, subject), event in self._raised.items():
            rule = self.rules.get(rule_id)
            severe = KINDS[rule.kind].severe if rule else False
            active.append(ActiveAlert(rule_id, subject, event.text, event.began, severe))
        self.cluster.alerts = tuple(sorted(active, key=lambda alert: (not alert.severe, alert.began)))

    @staticmethod
    def is_silenced(rule: Rule) -> bool:
        return rule.silenced_until > time.time()

    # --- webhooks

    def _enqueue(self, rule: Rule, state: str, subject: str, text: str, at: float) -> None:
        if not rule.webhook:
            return
        try:
            self._messages.put_nowait((rule, message_of(self.cluster.name, rule, state, subject, text, at)))
        except asyncio.QueueFull:
            logger.warning("Cannot send an alert to its webhook, the queue is full: %s", text)

    async def _send(self) -> None:
        while True:
            rule, message = await self._messages.get()
            outcome = ""
            for attempt in range(WEBHOOK_ATTEMPTS):
                if attempt:
                    await asyncio.sleep(WEBHOOK_RETRY_DELAY_S)
                outcome = await asyncio.to_thread(post, rule.webhook, message)
                if outcome == "sent":
                    break
            else:
                logger.warning("Cannot send an alert to the webhook of rule %d: %s", rule.id, outcome)
            self._record(rule, outcome)

    async def test(self, rule: Rule) -> str:
        """Send a test message to the webhook of a rule, once. Returns "sent" or the reason for the
        failure."""
        message = message_of(self.cluster.name, rule, "test", "test", f"test of the alert rule {rule.id}", time.time())
        outcome = await asyncio.to_thread(post, rule.webhook, message)
        self._record(rule, outcome)
        return outcome

    def _record(self, rule: Rule, outcome: str) -> None:
        self._sent.labels("sent" if outcome == "sent" else "failed").value += 1
        if rule.id in self.rules:
            self.last_messages[rule.id] = LastMessage(time.time(), outcome)


def message_of(cluster: str, rule: Rule, state: str, subject: str, text: str, at: float) -> dict[str, object]:
    """Return the message to a webhook in the format of the rule."""
    if rule.format is Format.SLACK:
        # Slack interprets <!channel> and links: the text may contain the name of a group.
        escaped = text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
        return {"text": f"[{cluster}] {state}: {escaped}"}
    return {
        "cluster": cluster,
        "rule": rule.id,
        "kind": rule.kind.value,
        "state": state,
        "subject": subject,
        "text": text,
        "at": at,
    }


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *arguments: object, **keywords: object) -> None:
        return None


def post(address: str, message: dict[str, object]) -> str:
    """Post a message to a webhook. Returns "sent", or the reason for the failure."""
    request = urllib.request.Request(
        address,
        json.dumps(message).encode(),
        {"Content-Type": "application/json", "User-Agent": "kavka-console"},
        method="POST",
    )
    try:
        with urllib.request.build_opener(_NoRedirects).open(request, timeout=WEBHOOK_TIMEOUT_S) as response:
            return "sent" if 200 <= response.status < 300 else f"HTTP status {response.status}"
    except urllib.error.HTTPError as error:
        return f"HTTP status {error.code}"
    except (OSError, ValueError) as error:
        return str(getattr(error, "reason", error))[:200]


def _columns(rule: Rule) -> tuple[object, ...]:
    return (
        rule.kind.value, rule.subject, rule.threshold, rule.for_s, rule.webhook, int(rule.enabled), rule.format.value,
        rule.silenced_until,
    )  # fmt: skip


def _insert(db: sqlite3.Connection, cluster: str, rule: Rule) -> int:
    rule_id = db.execute(
        f"INSERT INTO rule (cluster, {COLUMNS}) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
        (cluster, *_columns(rule)),
    ).lastrowid
    return rule_id or 0
