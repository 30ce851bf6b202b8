"""Alerts: the rules of a cluster, those that are raised now, and who is told.

A rule's finding is pending until it has lasted `for_s`; then it is raised: an event in the store, a line on every page,
a message to the rule's webhook; another message when it is over. Events that were raised before a restart are raised
still, and nobody is told twice.
"""

from __future__ import annotations

import asyncio
import json
import logging
import sqlite3
import time
import urllib.error
import urllib.request
from dataclasses import dataclass
from typing import Any

from kavka.console.cluster import ActiveAlert, ClusterHandle
from kavka.console.rules import DEFAULTS, KINDS, Kind, Rule, findings

log = logging.getLogger(__name__)

WEBHOOK_TIMEOUT_S = 10.0
WEBHOOK_TRIES, WEBHOOK_WAIT_S = 3, 5.0
MAX_WAITING = 1000

Key = tuple[int, str]


@dataclass(frozen=True, slots=True)
class Event:
    """An alert that was raised; `ended` is None while it is."""

    id: int
    rule: int
    subject: str
    text: str
    began: float
    ended: float | None


@dataclass(frozen=True, slots=True)
class Told:
    """The last message to a webhook."""

    at: float
    outcome: str


class Alerts:
    """Of one cluster. All of it belongs to the loop."""

    def __init__(self, cluster: ClusterHandle) -> None:
        self.cluster = cluster
        self.rules: dict[int, Rule] = {}
        self.told: dict[int, Told] = {}
        self._pending: dict[Key, float] = {}
        self._raised: dict[Key, Event] = {}
        self._messages: asyncio.Queue[tuple[Rule, dict[str, object]]] = asyncio.Queue(MAX_WAITING)
        self._sender: asyncio.Task[None] | None = None

    async def load(self) -> None:
        store, name = self.cluster.store, self.cluster.name

        def read(db: sqlite3.Connection) -> tuple[list[tuple[Any, ...]], list[tuple[Any, ...]]]:
            made = f"rules-made/{name}"
            if not db.execute("SELECT 1 FROM setting WHERE name = ?", (made,)).fetchone():
                db.execute("INSERT INTO setting VALUES (?, '1')", (made,))
                for rule in DEFAULTS:
                    _insert(db, name, rule)
            rules = db.execute(
                "SELECT id, kind, subject, threshold, for_s, webhook, enabled FROM rule WHERE cluster = ? ORDER BY id",
                (name,),
            ).fetchall()
            events = db.execute(
                "SELECT id, rule, subject, text, began, ended FROM event WHERE cluster = ? AND ended IS NULL", (name,)
            ).fetchall()
            return rules, events

        rules, events = await store.run(read)
        known = {kind.value for kind in Kind}
        self.rules = {
            row[0]: Rule(row[0], Kind(row[1]), row[2], row[3], row[4], row[5], bool(row[6]))
            for row in rules
            if row[1] in known
        }
        self._raised = {(row[1], row[2]): Event(*row) for row in events}
        self._show()
        self._sender = asyncio.create_task(self._send())

    async def close(self) -> None:
        if self._sender is not None:
            self._sender.cancel()
            await asyncio.gather(self._sender, return_exceptions=True)

    # --- rules

    async def put(self, rule: Rule) -> Rule:
        """A new one (id 0), or a change of one."""
        name = self.cluster.name

        def work(db: sqlite3.Connection) -> int:
            if not rule.id:
                return _insert(db, name, rule)
            db.execute(
                "UPDATE rule SET kind = ?, subject = ?, threshold = ?, for_s = ?, webhook = ?, enabled = ? "
                "WHERE id = ?",
                (*_row(rule), rule.id),
            )
            return rule.id

        number = await self.cluster.store.run(work)
        kept = Rule(number, rule.kind, rule.subject, rule.threshold, rule.for_s, rule.webhook, rule.enabled)
        self.rules[number] = kept
        await self.judge()
        return kept

    async def remove(self, rule: int) -> None:
        await self.cluster.store.run(lambda db: db.execute("DELETE FROM rule WHERE id = ?", (rule,)))
        self.rules.pop(rule, None)
        self.told.pop(rule, None)
        await self.judge()

    async def events(self, limit: int) -> list[Event]:
        rows = await self.cluster.store.run(
            lambda db: db.execute(
                "SELECT id, rule, subject, text, began, ended FROM event WHERE cluster = ? ORDER BY id DESC LIMIT ?",
                (self.cluster.name, limit),
            ).fetchall()
        )
        return [Event(*row) for row in rows]

    # --- judging

    async def judge(self) -> None:
        """After a sample, or a change of rules."""
        now = time.time()
        wrong: dict[Key, str] = {}
        unknown: set[int] = set()
        for rule in self.rules.values():
            if not rule.enabled:
                continue
            found = findings(rule, self.cluster.sample, self.cluster.error)
            if found is None:
                unknown.add(rule.id)
                continue
            wrong.update({(rule.id, subject): text for subject, text in found.items()})
        self._pending = {key: began for key, began in self._pending.items() if key in wrong or key[0] in unknown}
        for key, text in wrong.items():
            began = self._pending.setdefault(key, now)
            if key not in self._raised and now - began >= self.rules[key[0]].for_s:
                await self._raise(key, text, now)
        for key, event in list(self._raised.items()):
            if key in wrong:
                if wrong[key] != event.text:
                    self._raised[key] = Event(event.id, event.rule, event.subject, wrong[key], event.began, None)
            elif key[0] not in unknown:
                await self._end(key, event, now)
        self._show()

    async def _raise(self, key: Key, text: str, now: float) -> None:
        row = (self.cluster.name, key[0], key[1], text, now)
        insert = "INSERT INTO event (cluster, rule, subject, text, began) VALUES (?, ?, ?, ?, ?)"
        number: int | None = 0
        try:
            number = await self.cluster.store.run(lambda db: db.execute(insert, row).lastrowid)
        except sqlite3.Error as error:
            # A full disk may be what the alert is about.
            log.error("an alert could not be written down (%s): %s", error, text)
        self._raised[key] = Event(number or 0, key[0], key[1], text, now, None)
        self._tell(self.rules[key[0]], "raised", key[1], text, now)

    async def _end(self, key: Key, event: Event, now: float) -> None:
        row = (now, event.text, event.id)
        try:
            await self.cluster.store.run(
                lambda db: db.execute("UPDATE event SET ended = ?, text = ? WHERE id = ?", row)
            )
        except sqlite3.Error as error:
            log.error("the end of an alert could not be written down (%s): %s", error, event.text)
        del self._raised[key]
        rule = self.rules.get(key[0])
        if rule is not None:
            self._tell(rule, "ended", key[1], event.text, now)

    def _show(self) -> None:
        found = []
        for (number, subject), event in self._raised.items():
            rule = self.rules.get(number)
            severe = KINDS[rule.kind].severe if rule else False
            found.append(ActiveAlert(number, subject, event.text, event.began, severe))
        self.cluster.alerts = tuple(sorted(found, key=lambda alert: (not alert.severe, alert.began)))

    # --- webhooks

    def _tell(self, rule: Rule, state: str, subject: str, text: str, at: float) -> None:
        if not rule.webhook:
            return
        message: dict[str, object] = {
            "cluster": self.cluster.name,
            "rule": rule.id,
            "kind": rule.kind.value,
            "state": state,
            "subject": subject,
            "text": text,
            "at": at,
        }
        try:
            self._messages.put_nowait((rule, message))
        except asyncio.QueueFull:
            log.warning("an alert could not be sent, too many wait: %s", text)

    async def _send(self) -> None:
        while True:
            rule, message = await self._messages.get()
            outcome = ""
            for attempt in range(WEBHOOK_TRIES):
                if attempt:
                    await asyncio.sleep(WEBHOOK_WAIT_S)
                outcome = await asyncio.to_thread(post, rule.webhook, message)
                if outcome == "sent":
                    break
            else:
                log.warning("an alert could not be sent to the webhook of rule %d: %s", rule.id, outcome)
            if rule.id in self.rules:
                self.told[rule.id] = Told(time.time(), outcome)


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *arguments: object, **named: object) -> None:
        return None


def post(address: str, message: dict[str, object]) -> str:
    """`sent`, or why not."""
    request = urllib.request.Request(
        address,
        json.dumps(message).encode(),
        {"Content-Type": "application/json", "User-Agent": "kavka-console"},
        method="POST",
    )
    try:
        with urllib.request.build_opener(_NoRedirects).open(request, timeout=WEBHOOK_TIMEOUT_S) as answer:
            return "sent" if 200 <= answer.status < 300 else f"it answered {answer.status}"
    except urllib.error.HTTPError as error:
        return f"it answered {error.code}"
    except (OSError, ValueError) as error:
        return str(getattr(error, "reason", error))[:200]


def _row(rule: Rule) -> tuple[object, ...]:
    return rule.kind.value, rule.subject, rule.threshold, rule.for_s, rule.webhook, int(rule.enabled)


def _insert(db: sqlite3.Connection, cluster: str, rule: Rule) -> int:
    found = db.execute(
        "INSERT INTO rule (cluster, kind, subject, threshold, for_s, webhook, enabled) VALUES (?, ?, ?, ?, ?, ?, ?)",
        (cluster, *_row(rule)),
    ).lastrowid
    return found or 0
