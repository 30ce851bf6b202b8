"""Sends records to an HTTP service, one or several per request."""

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
_MAX_DETAIL = 300


def codes(texts: tuple[str, ...]) -> list[tuple[int, int]]:
    """Parses ranges of status codes like `429` and `500-599`. Raises ValueError if a range is
    invalid."""
    ranges = []
    for text in texts:
        match = re.fullmatch(r"(\d{3})(?:-(\d{3}))?", text.strip())
        if match is None:
            raise ValueError(f"{text} is not a status code or a range like 500-599")
        ranges.append((int(match[1]), int(match[2] or match[1])))
    return ranges


def _are_codes(texts: tuple[str, ...]) -> bool:
    try:
        codes(texts)
    except ValueError:
        return False
    return True


def headers_of(text: str, separator: str) -> dict[str, str]:
    """Parses headers like `Name: value|Other: value`. Raises ValueError if a header is invalid. The
    message does not contain the header, which may be a secret."""
    headers = {}
    for number, header in enumerate(text.split(separator) if text else [], start=1):
        name, colon, value = header.partition(":")
        if not colon or not re.fullmatch(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+", name.strip()) or re.search(r"[\r\n]", value):
            raise ValueError(f"header {number} is not like Name: value")
        headers[name.strip()] = value.strip()
    return headers


def _is_url(text: str) -> bool:
    try:
        url = urllib.parse.urlsplit(text)
        return url.scheme in ("http", "https") and bool(url.hostname) and (url.port is None or url.port > 0)
    except ValueError:
        return False


class HttpSink(Sink):
    """Sends records to an HTTP service, one or several per request.

    The body is the value: text unchanged, structs as JSON. A response with the status 2xx confirms
    the records. Requests that fail with a connection error or a status of
    `retry.on.status.codes` are retried `max.retries` times. Then the task fails. A record that is
    rejected with another status fails the task, or is dropped and sent to the dead-letter topic,
    depending on `errors.tolerance`. Each record is delivered at least once. The records of a
    partition are sent in order.
    """

    options = (
        Option(
            "http.api.url",
            doc="The URL, with the placeholders `${topic}` and `${key}`. With `${key}` a request has one record.",
            importance=HIGH,
            group=_REQUEST,
            validator=Satisfies("like http://host:port/path", _is_url),
        ),
        Option("request.method", default="POST", doc="POST, PUT, PATCH or DELETE.", importance=HIGH, group=_REQUEST,
               validator=OneOf(_METHODS, ignore_case=True), recommended=_METHODS),
        Option("headers", default="", doc="Headers of requests: `Content-Type: application/json|X-Name: value`.",
               group=_REQUEST),
        Option("header.separator", default="|", doc="The separator of headers.", importance=LOW, group=_REQUEST),
        Option("behavior.on.null.values", default="ignore", doc="For a record without a value: `ignore` it, `delete` "
               "(send a DELETE request, to a URL with `${key}`), or `fail`.", importance=LOW, group=_REQUEST,
               validator=OneOf(_NULLS, ignore_case=True), recommended=_NULLS),
        Option("request.timeout.ms", INT, 30_000, "The timeout for a connection and for a response.", LOW, AtLeast(1),
               _REQUEST),
        Option("auth.type", default="none", doc="`basic`: connection.user and connection.password; `bearer`: "
               "auth.bearer.token.", group=_AUTH, validator=OneOf(_AUTHS, ignore_case=True), recommended=_AUTHS),
        Option("connection.user", default="", doc="The user for basic authentication.", group=_AUTH),
        Option("connection.password", PASSWORD, "", "The password for basic authentication.", group=_AUTH),
        Option("auth.bearer.token", PASSWORD, "", "The token for bearer authentication.", group=_AUTH),
        Option("batch.max.size", INT, 1, "The maximum number of records per request.", validator=AtLeast(1),
               group=_BATCHES),
        Option("batch.prefix", default="[", doc="The start of a body, if `batch.max.size` is more than 1.",
               importance=LOW, group=_BATCHES),
        Option("batch.suffix", default="]", doc="The end of such a body.", importance=LOW, group=_BATCHES),
        Option("batch.separator", default=",", doc="The separator of values.", importance=LOW, group=_BATCHES),
        Option("max.retries", INT, 10, "The maximum number of retries of a request.", validator=AtLeast(0),
               group=_RETRIES),
        Option("retry.backoff.ms", INT, 3000, "The delay before a retry.", LOW, AtLeast(0), _RETRIES),
        Option("retry.on.status.codes", LIST, ("408", "429", "500-599"), "Status codes to retry.", LOW,
               Satisfies("status codes, or ranges like 500-599", _are_codes), _RETRIES),
    )  # fmt: skip

    @classmethod
    def check(cls, config: Mapping[str, Any], originals: Mapping[str, str]) -> dict[str, str]:
        errors: dict[str, str] = {}
        try:
            headers_of(config["headers"] or "", config["header.separator"] or "|")
        except ValueError as error:
            errors["headers"] = str(error)
        auth = (config["auth.type"] or "").lower()
        if auth == "basic" and not config["connection.user"]:
            errors["connection.user"] = "auth.type=basic requires it"
        if auth == "bearer" and not config["auth.bearer.token"]:
            errors["auth.bearer.token"] = "auth.type=bearer requires it"
        deletes = (config["behavior.on.null.values"] or "").lower() == "delete"
        if deletes and "${key}" not in (config["http.api.url"] or ""):
            errors["behavior.on.null.values"] = "delete requires an http.api.url with ${key}"
        return errors

    def write(self, context: Context, records: DataFrame, batch_id: int) -> list[Failed]:
        from kavka.pipeline.connect.connectors.columns import text_of

        rows = records.select(
            "topic",
            "partition",
            "offset",
            text_of(records, "key").alias("key"),
            text_of(records, "value").alias("value"),
        )
        failures = rows.mapInArrow(task(Target.of(context.config)), _RESULT).collect()
        for row in failures:
            if row.fatal:
                raise ConnectError(row.message)
        return [Failed(row.topic, row.partition, row.offset, row.message) for row in failures]


@dataclass(frozen=True)
class Target:
    """The parameters of requests, which Spark sends to the tasks."""

    url: str
    method: str
    headers: Mapping[str, str]
    null_behavior: str
    timeout: float
    max_records: int
    prefix: str
    suffix: str
    separator: str
    retries: int
    backoff: float
    retriable_codes: tuple[tuple[int, int], ...]

    @classmethod
    def of(cls, config: Mapping[str, Any]) -> Target:
        headers = headers_of(config["headers"], config["header.separator"])
        auth = config["auth.type"].lower()
        if auth == "basic":
            credentials = f"{config['connection.user']}:{config['connection.password']}".encode()
            headers["Authorization"] = f"Basic {base64.b64encode(credentials).decode()}"
        elif auth == "bearer":
            headers["Authorization"] = f"Bearer {config['auth.bearer.token']}"
        if not any(name.lower() == "content-type" for name in headers):
            headers["Content-Type"] = "application/json"
        return cls(
            url=config["http.api.url"],
            method=config["request.method"].upper(),
            headers=headers,
            null_behavior=config["behavior.on.null.values"].lower(),
            timeout=config["request.timeout.ms"] / 1000,
            max_records=1 if "${key}" in config["http.api.url"] else config["batch.max.size"],
            prefix=config["batch.prefix"],
            suffix=config["batch.suffix"],
            separator=config["batch.separator"],
            retries=config["max.retries"],
            backoff=config["retry.backoff.ms"] / 1000,
            retriable_codes=tuple(codes(config["retry.on.status.codes"])),
        )

    def address(self, topic: str, key: str | None) -> str:
        address = self.url
        for placeholder, text in (("${topic}", topic), ("${key}", key or "")):
            address = address.replace(placeholder, urllib.parse.quote(text, safe=""))
        return address

    def is_retriable(self, status: int) -> bool:
        return any(low <= status <= high for low, high in self.retriable_codes)


Record = tuple[str, int, int, str | None, str | None]
"""Topic, partition, offset, key, value."""
Failure = tuple[str, int, int, str, bool]
"""Topic, partition, offset, reason, and whether the failure is fatal: the service is
unavailable."""


class RequestRejected(Exception):
    """A request failed, or the service rejected it. `is_retriable`: a retry may succeed."""

    def __init__(self, message: str, is_retriable: bool) -> None:
        super().__init__(message)
        self.is_retriable = is_retriable


class Client:
    """One connection of one task, reused for all requests."""

    def __init__(self, target: Target, wait: Callable[[float], None] = time.sleep) -> None:
        self._target = target
        self._wait = wait
        self._origin = ""
        self._connection: http.client.HTTPConnection | None = None

    def send(self, records: list[Record]) -> None:
        """Sends the records in one request. Raises RequestRejected if the service rejects the
        request, or if the last retry fails (`is_retriable`)."""
        target = self._target
        topic, _, _, key, value = records[0]
        method, body = target.method, value or ""
        if value is None:
            method, body = "DELETE", ""
        elif target.max_records > 1:
            body = target.prefix + target.separator.join(record[4] or "" for record in records) + target.suffix
        address = target.address(topic, key)
        retries_left = target.retries
        while True:
            try:
                return self._request(method, address, body.encode())
            except RequestRejected as error:
                if not error.is_retriable:
                    raise
                if not retries_left:
                    raise RequestRejected(f"{error} ({target.retries} retries)", is_retriable=True) from None
                retries_left -= 1
                self._wait(target.backoff)

    def _request(self, method: str, address: str, body: bytes) -> None:
        parts = urllib.parse.urlsplit(address)
        description = f"{method} {address.split('?')[0]}"
        try:
            connection = self._connected(parts)
            path = urllib.parse.urlunsplit(("", "", parts.path or "/", parts.query, ""))
            connection.request(method, path, body if body or method != "DELETE" else None, dict(self._target.headers))
            response = connection.getresponse()
            text = response.read()
        except (OSError, http.client.HTTPException) as error:
            self.close()
            raise RequestRejected(f"{description}: {type(error).__name__}: {error}", is_retriable=True) from None
        if response.status // 100 != 2:
            detail = " ".join(text[:_MAX_DETAIL].decode("utf-8", "replace").split())
            message = f"{description} returned {response.status} {response.reason}{': ' if detail else ''}{detail}"
            raise RequestRejected(message, self._target.is_retriable(response.status))

    def _connected(self, parts: urllib.parse.SplitResult) -> http.client.HTTPConnection:
        origin = f"{parts.scheme}://{parts.netloc}"
        if self._connection is None or self._origin != origin:
            self.close()
            host, port, timeout = parts.hostname or "", parts.port, self._target.timeout
            if parts.scheme == "https":
                context = ssl.create_default_context()
                self._connection = http.client.HTTPSConnection(host, port, timeout=timeout, context=context)
            else:
                self._connection = http.client.HTTPConnection(host, port, timeout=timeout)
            self._origin = origin
        return self._connection

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None


def deliver(target: Target, records: Iterator[Record], client: Client) -> Iterator[Failure]:
    """Sends all records and yields the failures. No records are sent after a fatal failure."""
    batch: list[Record] = []

    def send() -> Iterator[Failure]:
        try:
            if batch:
                client.send(batch)
        except RequestRejected as error:
            if error.is_retriable or len(batch) == 1:
                yield (*batch[0][:3], str(error), error.is_retriable)
            else:
                yield from send_separately()
        batch.clear()

    def send_separately() -> Iterator[Failure]:
        """Finds the records of a rejected batch that the service rejects."""
        for record in batch:
            try:
                client.send([record])
            except RequestRejected as error:
                yield (*record[:3], str(error), error.is_retriable)
                if error.is_retriable:
                    return

    for record in records:
        if record[4] is None and target.null_behavior == "ignore":
            continue
        if record[4] is None and target.null_behavior == "fail":
            yield (*record[:3], "the record has no value", False)
            continue
        if batch and (len(batch) == target.max_records or batch[0][0] != record[0] or record[4] is None):
            for failure in send():
                yield failure
                if failure[4]:
                    return
        batch.append(record)
    yield from send()


def task(target: Target) -> Callable[[Iterator[Any]], Iterator[Any]]:
    """Returns the function of a Spark task, which sends records and yields the failures."""

    def work(batches: Iterator[Any]) -> Iterator[Any]:
        import pyarrow as pa

        names = ("topic", "partition", "offset", "key", "value")

        def records() -> Iterator[Record]:
            for batch in batches:
                yield from zip(*(batch.column(name).to_pylist() for name in names), strict=True)

        client = Client(target)
        try:
            failures = list(deliver(target, records(), client))
        finally:
            client.close()
        if failures:
            kinds = (pa.string(), pa.int32(), pa.int64(), pa.string(), pa.bool_())
            columns = [pa.array(column, kind) for column, kind in zip(zip(*failures, strict=True), kinds, strict=True)]
            yield pa.RecordBatch.from_arrays(columns, ["topic", "partition", "offset", "message", "fatal"])

    return work
