"""Records of topics to an HTTP service, one or several in a request."""

from __future__ import annotations

import base64
import http.client
import re
import ssl
import time
import urllib.parse
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from kavka.common.config import HIGH, INT, LIST, LOW, PASSWORD, AtLeast, OneOf, Satisfies
from kavka.pipeline.connect.api import Context, Failed, Sink
from kavka.pipeline.connect.errors import ConnectError
from kavka.pipeline.connect.options import Option

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_REQUEST, _AUTH, _BATCHES, _RETRIES = "Request", "Authentication", "Batches", "Retries"
_METHODS, _AUTHS, _NULLS = ("POST", "PUT", "PATCH", "DELETE"), ("none", "basic", "bearer"), ("ignore", "delete", "fail")
_RESULT = "topic string, partition int, offset bigint, message string, fatal boolean"
_SHOWN = 300


def codes(texts: tuple[str, ...]) -> list[tuple[int, int]]:
    """Ranges of status codes, from `429` and `500-599`. ValueError where it is none."""
    found = []
    for text in texts:
        match = re.fullmatch(r"(\d{3})(?:-(\d{3}))?", text.strip())
        if match is None:
            raise ValueError(f"{text} is not a status code or a range of them like 500-599")
        found.append((int(match[1]), int(match[2] or match[1])))
    return found


def _are_codes(texts: tuple[str, ...]) -> bool:
    try:
        codes(texts)
    except ValueError:
        return False
    return True


def headers_of(text: str, separator: str) -> dict[str, str]:
    """From `Name: value|Other: value`. ValueError where one has no name; without its text, which may be a secret."""
    found = {}
    for number, header in enumerate(text.split(separator) if text else [], start=1):
        name, colon, value = header.partition(":")
        if not colon or not re.fullmatch(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+", name.strip()) or re.search(r"[\r\n]", value):
            raise ValueError(f"header {number} is not like Name: value")
        found[name.strip()] = value.strip()
    return found


def _is_url(text: str) -> bool:
    try:
        found = urllib.parse.urlsplit(text)
        return found.scheme in ("http", "https") and bool(found.hostname) and (found.port is None or found.port > 0)
    except ValueError:
        return False


class HttpSink(Sink):
    """Records of topics to an HTTP service, one or several in a request.

    The body is the value: text as it is, structs as JSON. What is answered with 2xx is done. A connection that fails,
    and the status codes of `retry.on.status.codes`, are tried again `max.retries` times; then the task fails. A record
    that is refused with another code is treated as `errors.tolerance` says: the task fails, or the record goes to the
    dead-letter topic, if there is one. Each record arrives at least once; those of a partition in their order."""

    options = (
        Option(
            "http.api.url",
            doc="The address. `${topic}` and `${key}` are those of the record; with `${key}` a request is for one.",
            importance=HIGH,
            group=_REQUEST,
            validator=Satisfies("like http://host:port/path", _is_url),
        ),
        Option("request.method", default="POST", doc="POST, PUT, PATCH or DELETE.", importance=HIGH, group=_REQUEST,
               validator=OneOf(_METHODS, ignore_case=True), recommended=_METHODS),
        Option("headers", default="", doc="Headers of requests: `Content-Type: application/json|X-Name: value`.",
               group=_REQUEST),
        Option("header.separator", default="|", doc="What stands between them.", importance=LOW, group=_REQUEST),
        Option("behavior.on.null.values", default="ignore", doc="A record without a value: `ignore` it, `delete` (a "
               "DELETE request, to an address with `${key}`), or `fail`.", importance=LOW, group=_REQUEST,
               validator=OneOf(_NULLS, ignore_case=True), recommended=_NULLS),
        Option("request.timeout.ms", INT, 30_000, "How long to wait for a connection, or an answer.", LOW, AtLeast(1),
               _REQUEST),
        Option("auth.type", default="none", doc="`basic`: connection.user and connection.password; `bearer`: "
               "auth.bearer.token.", group=_AUTH, validator=OneOf(_AUTHS, ignore_case=True), recommended=_AUTHS),
        Option("connection.user", default="", doc="For basic authentication.", group=_AUTH),
        Option("connection.password", PASSWORD, "", "For basic authentication.", group=_AUTH),
        Option("auth.bearer.token", PASSWORD, "", "The token.", group=_AUTH),
        Option("batch.max.size", INT, 1, "The most records of a request.", validator=AtLeast(1), group=_BATCHES),
        Option("batch.prefix", default="[", doc="What a body of several begins with.", importance=LOW, group=_BATCHES),
        Option("batch.suffix", default="]", doc="And what it ends with.", importance=LOW, group=_BATCHES),
        Option("batch.separator", default=",", doc="And what is between values.", importance=LOW, group=_BATCHES),
        Option("max.retries", INT, 10, "How often a request is tried again.", validator=AtLeast(0), group=_RETRIES),
        Option("retry.backoff.ms", INT, 3000, "How long to wait before that.", LOW, AtLeast(0), _RETRIES),
        Option("retry.on.status.codes", LIST, ("408", "429", "500-599"), "Status codes that may pass.", LOW,
               Satisfies("status codes, or ranges like 500-599", _are_codes), _RETRIES),
    )  # fmt: skip

    @classmethod
    def check(cls, config: Mapping[str, Any], given: Mapping[str, str]) -> dict[str, str]:
        found: dict[str, str] = {}
        try:
            headers_of(config["headers"] or "", config["header.separator"] or "|")
        except ValueError as error:
            found["headers"] = str(error)
        auth = (config["auth.type"] or "").lower()
        if auth == "basic" and not config["connection.user"]:
            found["connection.user"] = "auth.type=basic needs it"
        if auth == "bearer" and not config["auth.bearer.token"]:
            found["auth.bearer.token"] = "auth.type=bearer needs it"
        deletes = (config["behavior.on.null.values"] or "").lower() == "delete"
        if deletes and "${key}" not in (config["http.api.url"] or ""):
            found["behavior.on.null.values"] = "delete needs an http.api.url with ${key}"
        return found

    def write(self, context: Context, records: DataFrame, batch_id: int) -> list[Failed]:
        from kavka.pipeline.connect.connectors.columns import text_of

        rows = records.select(
            "topic",
            "partition",
            "offset",
            text_of(records, "key").alias("key"),
            text_of(records, "value").alias("value"),
        )
        found = rows.mapInArrow(task(Target.of(context.config)), _RESULT).collect()
        for row in found:
            if row.fatal:
                raise ConnectError(row.message)
        return [Failed(row.topic, row.partition, row.offset, row.message) for row in found]


@dataclass(frozen=True)
class Target:
    """Where requests go, and how. Sent to the tasks."""

    url: str
    method: str
    headers: Mapping[str, str]
    nulls: str
    timeout: float
    most: int
    prefix: str
    suffix: str
    separator: str
    retries: int
    backoff: float
    retried: tuple[tuple[int, int], ...]

    @classmethod
    def of(cls, config: Mapping[str, Any]) -> Target:
        headers = headers_of(config["headers"], config["header.separator"])
        auth = config["auth.type"].lower()
        if auth == "basic":
            pair = f"{config['connection.user']}:{config['connection.password']}".encode()
            headers["Authorization"] = f"Basic {base64.b64encode(pair).decode()}"
        elif auth == "bearer":
            headers["Authorization"] = f"Bearer {config['auth.bearer.token']}"
        if not any(name.lower() == "content-type" for name in headers):
            headers["Content-Type"] = "application/json"
        return cls(
            url=config["http.api.url"],
            method=config["request.method"].upper(),
            headers=headers,
            nulls=config["behavior.on.null.values"].lower(),
            timeout=config["request.timeout.ms"] / 1000,
            most=1 if "${key}" in config["http.api.url"] else config["batch.max.size"],
            prefix=config["batch.prefix"],
            suffix=config["batch.suffix"],
            separator=config["batch.separator"],
            retries=config["max.retries"],
            backoff=config["retry.backoff.ms"] / 1000,
            retried=tuple(codes(config["retry.on.status.codes"])),
        )

    def address(self, topic: str, key: str | None) -> str:
        parts = {"${topic}": topic, "${key}": "" if key is None else key}
        found = self.url
        for name, text in parts.items():
            found = found.replace(name, urllib.parse.quote(text, safe=""))
        return found

    def may_pass(self, status: int) -> bool:
        return any(low <= status <= high for low, high in self.retried)


Record = tuple[str, int, int, str | None, str | None]
"""Topic, partition, offset, key, value."""


class Refused(Exception):
    """The service will not have what was sent; `passing`: it may, another time."""

    def __init__(self, message: str, passing: bool) -> None:
        super().__init__(message)
        self.passing = passing


class Client:
    """One connection, of one task, kept open from request to request."""

    def __init__(self, target: Target, wait: Callable[[float], None] = time.sleep) -> None:
        self._target = target
        self._wait = wait
        self._where = ""
        self._connection: http.client.HTTPConnection | None = None

    def send(self, records: list[Record]) -> None:
        """Refused if that cannot be; `passing` then says that it was tried often enough."""
        target = self._target
        topic, _, _, key, value = records[0]
        method, body = target.method, value or ""
        if value is None:
            method, body = "DELETE", ""
        elif target.most > 1:
            body = target.prefix + target.separator.join(one[4] or "" for one in records) + target.suffix
        address = target.address(topic, key)
        left = target.retries
        while True:
            try:
                return self._request(method, address, body.encode())
            except Refused as error:
                if not error.passing:
                    raise
                if not left:
                    raise Refused(f"{error} ({target.retries} retries)", passing=True) from None
                left -= 1
                self._wait(target.backoff)

    def _request(self, method: str, address: str, body: bytes) -> None:
        parts = urllib.parse.urlsplit(address)
        shown = f"{method} {address.split('?')[0]}"
        try:
            connection = self._connected(parts)
            path = urllib.parse.urlunsplit(("", "", parts.path or "/", parts.query, ""))
            connection.request(method, path, body if body or method != "DELETE" else None, dict(self._target.headers))
            answer = connection.getresponse()
            text = answer.read()
        except (OSError, http.client.HTTPException) as error:
            self.close()
            raise Refused(f"{shown}: {type(error).__name__}: {error}", passing=True) from None
        if answer.status // 100 != 2:
            said = " ".join(text[:_SHOWN].decode("utf-8", "replace").split())
            message = f"{shown} was answered with {answer.status} {answer.reason}{': ' if said else ''}{said}"
            raise Refused(message, self._target.may_pass(answer.status))

    def _connected(self, parts: urllib.parse.SplitResult) -> http.client.HTTPConnection:
        where = f"{parts.scheme}://{parts.netloc}"
        if self._connection is None or self._where != where:
            self.close()
            host, port, wait = parts.hostname or "", parts.port, self._target.timeout
            if parts.scheme == "https":
                secure = ssl.create_default_context()
                self._connection = http.client.HTTPSConnection(host, port, timeout=wait, context=secure)
            else:
                self._connection = http.client.HTTPConnection(host, port, timeout=wait)
            self._where = where
        return self._connection

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None


def deliver(target: Target, records: Iterator[Record], client: Client) -> Iterator[tuple[str, int, int, str, bool]]:
    """Send all; what was refused, with the reason. The last is True where the service is away: nothing more is sent."""
    waiting: list[Record] = []

    def send() -> Iterator[tuple[str, int, int, str, bool]]:
        try:
            if waiting:
                client.send(waiting)
        except Refused as error:
            if error.passing:
                yield (*waiting[0][:3], str(error), True)
            elif len(waiting) == 1:
                yield (*waiting[0][:3], str(error), False)
            else:
                # Which of them it was is found out one by one.
                for one in waiting:
                    yield from alone(one)
        waiting.clear()

    def alone(one: Record) -> Iterator[tuple[str, int, int, str, bool]]:
        try:
            client.send([one])
        except Refused as error:
            yield (*one[:3], str(error), error.passing)

    for record in records:
        if record[4] is None and target.nulls == "ignore":
            continue
        if record[4] is None and target.nulls == "fail":
            yield (*record[:3], "the record has no value", False)
            continue
        if waiting and (len(waiting) == target.most or waiting[0][0] != record[0] or record[4] is None):
            for found in send():
                yield found
                if found[4]:
                    return
        waiting.append(record)
    yield from send()


def task(target: Target) -> Callable[[Iterator[Any]], Iterator[Any]]:
    def work(batches: Iterator[Any]) -> Iterator[Any]:
        import pyarrow as pa

        names = ("topic", "partition", "offset", "key", "value")

        def records() -> Iterator[Record]:
            for batch in batches:
                yield from zip(*(batch.column(name).to_pylist() for name in names), strict=True)

        client = Client(target)
        try:
            found = list(deliver(target, records(), client))
        finally:
            client.close()
        if found:
            kinds = (pa.string(), pa.int32(), pa.int64(), pa.string(), pa.bool_())
            columns = [pa.array(column, kind) for column, kind in zip(zip(*found, strict=True), kinds, strict=True)]
            yield pa.RecordBatch.from_arrays(columns, ["topic", "partition", "offset", "message", "fatal"])

    return work
