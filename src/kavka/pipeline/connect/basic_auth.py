"""Basic authentication of the REST interface, as Kafka Connect's BasicAuthSecurityRestExtension.

The users are in a properties file (`name=password`), which is read when the worker starts. A check
compares digests in memory: it is fast enough for the event loop, and its time does not reveal
whether a user exists. Internal requests are exempt, because workers sign them.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import logging
import re
import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from starlette.datastructures import Headers
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from kavka.common.properties import PropertiesError, parse_properties
from kavka.pipeline.connect.errors import ConnectError
from kavka.security.jaas import JaasError, parse_client_jaas

logger = logging.getLogger(__name__)

EXTENSIONS, JAAS = "rest.extension.classes", "rest.extension.jaas.config"
_EXTENSION = "BasicAuthSecurityRestExtension"
_MODULE = "PropertyFileLoginModule"
_PACKAGE = "org.apache.kafka.connect.rest.basic.auth.extension."
_INTERNAL = re.compile(r"/connectors/.+/tasks")


class Users:
    """The users of the REST interface and the digests of their passwords."""

    def __init__(self, passwords: Mapping[str, str]) -> None:
        self._digests = {_digest(user): _digest(password) for user, password in passwords.items()}
        # Compared if the user does not exist. No password has this digest.
        self._no_digest = secrets.token_bytes(32)

    @classmethod
    def of(cls, settings: Mapping[str, Any]) -> Users | None:
        """Reads the users of a worker; None without authentication. Raises ConnectError with the
        name of the setting."""
        for name in settings[EXTENSIONS]:
            if name not in (_EXTENSION, _PACKAGE + _EXTENSION):
                raise ConnectError(f"{EXTENSIONS}: '{name}' is not supported, only {_PACKAGE}{_EXTENSION}")
        if not settings[EXTENSIONS]:
            return None
        if not settings[JAAS]:
            raise ConnectError(f'{JAAS}: must be set: {_PACKAGE}{_MODULE} required file="…";')
        try:
            entry = parse_client_jaas(settings[JAAS])
        except JaasError as error:
            raise ConnectError(f"{JAAS}: {error}") from None
        if entry.module_name != _MODULE:
            raise ConnectError(f"{JAAS}: {entry.module_name[:100]} is not supported, only {_PACKAGE}{_MODULE}")
        file = entry.options.get("file")
        if not file:
            raise ConnectError(f"{JAAS}: the option file of {_MODULE} must be set")
        return cls(_passwords(Path(file)))

    def accepts(self, authorization: str | None) -> bool:
        """Whether the header `Authorization` has the name and password of a user."""
        credentials = _credentials(authorization)
        if credentials is None:
            return False
        user, password = credentials
        expected = self._digests.get(_digest(user), self._no_digest)
        return hmac.compare_digest(_digest(password), expected)


def _passwords(path: Path) -> dict[str, str]:
    try:
        passwords = parse_properties(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConnectError(f"{JAAS}: cannot read {path}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise ConnectError(f"{JAAS}: {path} is not UTF-8") from None
    except PropertiesError as error:
        raise ConnectError(f"{JAAS}: {path}: {error}") from None
    # With an empty file, Kafka Connect accepts every client.
    if not passwords:
        raise ConnectError(f"{JAAS}: {path} has no users")
    return passwords


def _digest(text: str) -> bytes:
    return hashlib.sha256(text.encode("utf-8", "surrogateescape")).digest()


def _credentials(authorization: str | None) -> tuple[str, str] | None:
    """Returns (user, password) of the header, None if it has none."""
    scheme, _, encoded = (authorization or "").partition(" ")
    if scheme.lower() != "basic":
        return None
    try:
        raw = base64.b64decode(encoded.strip(), validate=True)
    except (binascii.Error, ValueError):
        return None
    user, _, password = raw.decode("utf-8", "surrogateescape").partition(":")
    return user, password


def is_internal(method: str, path: str) -> bool:
    """Whether only other workers send the request, with a signature."""
    return method == "POST" and _INTERNAL.fullmatch(path) is not None


class BasicAuth:
    """ASGI middleware that responds to requests without the password of a user."""

    def __init__(self, app: ASGIApp, users: Users) -> None:
        self.app = app
        self.users = users

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and not is_internal(scope["method"], scope["path"]):
            authorizations = Headers(scope=scope).getlist("authorization")
            if len(authorizations) != 1 or not self.users.accepts(authorizations[0]):
                logger.debug("%s %s failed authentication", scope["method"], scope["path"])
                body = {"error_code": 401, "message": "User cannot access the resource."}
                response = JSONResponse(body, 401, {"WWW-Authenticate": 'Basic realm="Kafka Connect", charset="UTF-8"'})
                await response(scope, receive, send)
                return
        await self.app(scope, receive, send)
