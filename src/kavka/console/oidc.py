"""Login with an identity provider: OpenID Connect, authorization code flow with PKCE.

1. `begin` creates a state, a nonce and a PKCE verifier, and returns the URL of the provider. They
   are stored in a signed cookie of the browser, so a pending login needs no memory here.
2. The provider redirects the browser to the callback with a code. `finish` compares the state with
   the cookie, exchanges the code for an ID token, verifies it and returns the user.

The ID token must have a signature by a key of the provider's key set, and the expected issuer,
audience, nonce, and times. The role of the user comes from a claim. Requests to the provider run in
worker threads, follow no redirects, and have a timeout and a maximum size.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import json
import secrets
import time
import urllib.error
import urllib.request
from base64 import b64encode, urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Mapping
from dataclasses import dataclass
from http.client import HTTPException
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode, urlsplit

from joserfc import jwt
from joserfc.errors import InvalidKeyIdError, JoseError
from joserfc.jwk import KeySet

from kavka.common.properties import PropertiesError, parse_properties
from kavka.console.auth import NAME_PATTERN, Role, User
from kavka.console.errors import Refused
from kavka.console.settings import SettingsError, is_loopback
from kavka.security.json_web_tokens import ALGORITHMS, MAX_TOKEN_LENGTH, TokenRules, check_claims
from kavka.security.sasl.oauth_bearer import TokenError

LOGIN_TIMEOUT_S = 600.0
"""Time between the start of a login and its callback."""
REQUEST_TIMEOUT_S = 10.0
MAX_RESPONSE_BYTES = 1024 * 1024
MAX_CONCURRENT_LOGINS = 4
DISCOVERY_LIFETIME_S = 3600.0
DISCOVERY_RETRY_S = 5.0
KEYS_RETRY_INTERVAL_S = 60.0
"""The key set is not loaded more often for tokens with unknown keys."""
CLOCK_SKEW_S = 60.0
MAX_GROUPS = 1000
ROLES = (Role.ADMIN, Role.OPERATE, Role.VIEW)


@dataclass(frozen=True, slots=True)
class OidcSettings:
    """The settings of `--oidc`. `roles` has the values of the role claim by role."""

    issuer: str
    client_id: str
    client_secret: str
    roles: Mapping[Role, frozenset[str]]
    default_role: Role
    scope: str
    name_claim: str
    role_claim: str


def read_oidc_settings(path: Path) -> OidcSettings:
    """Read a file in Kafka's properties format. Raises SettingsError and OSError."""
    try:
        values = parse_properties(path.read_text(encoding="utf-8"))
    except (UnicodeDecodeError, PropertiesError) as error:
        raise SettingsError(f"{path}: {error}") from None
    roles = {role: _list(values.pop(f"role.{role.word}", "")) for role in ROLES}
    try:
        issuer = values.pop("issuer").rstrip("/")
        client_id = values.pop("client.id")
        secret_file = Path(values.pop("client.secret.file"))
    except KeyError as error:
        raise SettingsError(f"{path}: {error.args[0]} is missing") from None
    try:
        default_role = Role.by_word(values.pop("role.default", "none"))
    except ValueError as error:
        raise SettingsError(f"{path}: role.default: {error}") from None
    settings = OidcSettings(
        issuer,
        client_id,
        (path.parent / secret_file).read_text(encoding="utf-8").strip(),
        roles,
        default_role,
        values.pop("scope", "openid profile email"),
        values.pop("name.claim", "preferred_username"),
        values.pop("role.claim", "groups"),
    )
    if values:
        raise SettingsError(f"{path}: unknown setting {next(iter(values))}")
    if not _is_safe(issuer):
        raise SettingsError(f"{path}: issuer must be an https URL, or http on localhost, not '{issuer}'")
    if not settings.client_secret:
        raise SettingsError(f"{path}: {secret_file} is empty")
    if not client_id:
        raise SettingsError(f"{path}: client.id is empty")
    if "openid" not in settings.scope.split():
        raise SettingsError(f"{path}: scope must contain openid")
    return settings


def _list(text: str) -> frozenset[str]:
    return frozenset(item.strip() for item in text.split(",") if item.strip())


def _is_safe(url: str) -> bool:
    try:
        parts = urlsplit(url)
        host = parts.hostname or ""
    except ValueError:
        return False
    return bool(host) and (parts.scheme == "https" or (parts.scheme == "http" and is_loopback(host)))


def _safe_url(document: Mapping[str, Any], name: str) -> str:
    url = document.get(name)
    if not isinstance(url, str) or not _is_safe(url):
        raise LoginFailed(f"the identity provider has no safe {name}", 502)
    return url


class LoginFailed(Refused):
    """A login that failed; `str()` is one line without secrets."""

    def __init__(self, message: str, status: int = 401) -> None:
        super().__init__(message, status)


@dataclass(frozen=True, slots=True)
class Endpoints:
    """The provider's endpoints, from its discovery document."""

    authorization: str
    token: str
    keys: str
    loaded_at: float


class IdentityProvider:
    """Performs logins with one provider. Only the event loop may call it."""

    def __init__(self, settings: OidcSettings) -> None:
        self.settings = settings
        self._secret = secrets.token_bytes(32)
        self._endpoints: Endpoints | None = None
        self._keys: KeySet | None = None
        self._keys_loaded_at = 0.0
        self._loading = asyncio.Lock()
        self._retry_at = 0.0
        """No request for the endpoints before this time (monotonic), after a failure. Otherwise
        logins would wait for each other's timeouts."""
        self._running = 0

    # --- the two steps

    async def begin(self, redirect_uri: str, next_page: str) -> tuple[str, str]:
        """Begin a login. Returns the URL of the provider, and the value of the cookie. Raises
        LoginFailed if the provider does not respond."""
        endpoints = await self._discover()
        login = {
            "state": secrets.token_urlsafe(24),
            "nonce": secrets.token_urlsafe(24),
            "verifier": secrets.token_urlsafe(48),
            "next": next_page[:2000],
            "at": time.time(),
        }
        query = {
            "response_type": "code",
            "client_id": self.settings.client_id,
            "redirect_uri": redirect_uri,
            "scope": self.settings.scope,
            "state": login["state"],
            "nonce": login["nonce"],
            "code_challenge": _base64(hashlib.sha256(str(login["verifier"]).encode()).digest()),
            "code_challenge_method": "S256",
        }
        separator = "&" if "?" in endpoints.authorization else "?"
        return endpoints.authorization + separator + urlencode(query), self._sign(login)

    async def finish(self, query: Mapping[str, str], cookie: str, redirect_uri: str) -> tuple[User, str]:
        """Complete a login. Returns the user and the next page. Raises LoginFailed."""
        login = self._verify(cookie)
        if not hmac.compare_digest(query.get("state", "").encode("utf-8", "replace"), login["state"].encode()):
            raise LoginFailed("the login was started in another browser or tab: log in again")
        if query.get("iss", self.settings.issuer).rstrip("/") != self.settings.issuer:
            raise LoginFailed("the response comes from another identity provider")
        if "error" in query:
            raise LoginFailed(f"the identity provider refused the login: {_printable(query['error'])}")
        code = query.get("code", "")
        if not code:
            raise LoginFailed("the identity provider returned no code")
        if self._running >= MAX_CONCURRENT_LOGINS:
            raise LoginFailed("too many logins at a time: try again", 429)
        self._running += 1
        try:
            token = await self._exchange(code, login["verifier"], redirect_uri)
            claims = await self._claims(token, login["nonce"])
        finally:
            self._running -= 1
        return self.user_of(claims), str(login["next"])

    # --- the cookie: JSON and its MAC

    def _sign(self, login: Mapping[str, Any]) -> str:
        text = _base64(json.dumps(login).encode())
        return f"{text}.{hmac.new(self._secret, text.encode(), hashlib.sha256).hexdigest()}"

    def _verify(self, cookie: str) -> dict[str, Any]:
        text, _, mac = cookie.partition(".")
        expected = hmac.new(self._secret, text.encode("utf-8", "replace"), hashlib.sha256).hexdigest()
        if not hmac.compare_digest(expected.encode(), mac.encode("utf-8", "replace")):
            raise LoginFailed("there is no login in this browser: log in again")
        login: dict[str, Any] = json.loads(urlsafe_b64decode(text + "=" * (-len(text) % 4)))
        if time.time() - login["at"] > LOGIN_TIMEOUT_S:
            raise LoginFailed("the login took too long: log in again")
        return login

    # --- requests to the provider

    async def _discover(self) -> Endpoints:
        async with self._loading:
            endpoints = self._endpoints
            if endpoints is not None and time.monotonic() - endpoints.loaded_at < DISCOVERY_LIFETIME_S:
                return endpoints
            if time.monotonic() < self._retry_at:
                raise LoginFailed("the identity provider did not respond: try again in some seconds", 502)
            self._retry_at = time.monotonic() + DISCOVERY_RETRY_S
            document = await _request_json(self.settings.issuer + "/.well-known/openid-configuration")
            if str(document.get("issuer", "")).rstrip("/") != self.settings.issuer:
                raise LoginFailed("the identity provider has another issuer than the console expects", 502)
            authorization, token, keys = (
                _safe_url(document, name) for name in ("authorization_endpoint", "token_endpoint", "jwks_uri")
            )
            self._endpoints = Endpoints(authorization, token, keys, time.monotonic())
            self._retry_at = 0.0
            return self._endpoints

    async def _exchange(self, code: str, verifier: str, redirect_uri: str) -> str:
        """Return the ID token for a code."""
        endpoints = await self._discover()
        form = {
            "grant_type": "authorization_code",
            "code": code,
            "redirect_uri": redirect_uri,
            "code_verifier": verifier,
        }
        client = f"{quote(self.settings.client_id, safe='')}:{quote(self.settings.client_secret, safe='')}"
        headers = {"Authorization": "Basic " + b64encode(client.encode()).decode()}
        response = await _request_json(endpoints.token, urlencode(form).encode(), headers)
        token = response.get("id_token")
        if not isinstance(token, str) or len(token) > MAX_TOKEN_LENGTH:
            raise LoginFailed("the identity provider returned no valid ID token")
        return token

    async def _key_set(self, *, refresh: bool) -> KeySet:
        endpoints = await self._discover()
        async with self._loading:
            age = time.monotonic() - self._keys_loaded_at
            if self._keys is None or age > DISCOVERY_LIFETIME_S or (refresh and age > KEYS_RETRY_INTERVAL_S):
                document = await _request_json(endpoints.keys)
                try:
                    self._keys = KeySet.import_key_set(document)  # type: ignore[arg-type]
                except (JoseError, ValueError, KeyError, TypeError, AttributeError) as error:
                    raise LoginFailed(f"the key set of the identity provider is invalid: {error}", 502) from None
                self._keys_loaded_at = time.monotonic()
            return self._keys

    # --- the ID token

    async def _claims(self, token: str, nonce: str) -> Mapping[str, Any]:
        """Return the verified claims of an ID token. Raises LoginFailed."""
        try:
            try:
                claims = _decode(token, await self._key_set(refresh=False))
            except InvalidKeyIdError:
                claims = _decode(token, await self._key_set(refresh=True))
        except (JoseError, ValueError, TypeError, KeyError, RecursionError) as error:
            raise LoginFailed(f"the ID token has no valid signature ({type(error).__name__})") from None
        rules = TokenRules(self.settings.issuer, (self.settings.client_id,), CLOCK_SKEW_S)
        claims = {**claims, "iss": str(claims.get("iss", "")).rstrip("/")}
        try:
            check_claims(claims, rules, time.time(), requires_issued_at=True)
        except TokenError as error:
            raise LoginFailed(f"the ID token is invalid: {error}") from None
        audience = claims.get("aud")
        is_only_audience = audience in (self.settings.client_id, [self.settings.client_id])
        if claims.get("azp", self.settings.client_id if is_only_audience else None) != self.settings.client_id:
            raise LoginFailed("the ID token was issued to another client")
        received_nonce = claims.get("nonce")
        if not isinstance(received_nonce, str) or not hmac.compare_digest(
            received_nonce.encode("utf-8", "replace"), nonce.encode()
        ):
            raise LoginFailed("the ID token belongs to another login")
        return claims

    def user_of(self, claims: Mapping[str, Any]) -> User:
        """Return the user of verified claims. Raises LoginFailed without a valid name or a role."""
        name = claims.get(self.settings.name_claim)
        if not isinstance(name, str) or not NAME_PATTERN.fullmatch(name):
            raise LoginFailed(f"the claim {self.settings.name_claim} of the ID token is not a valid user name", 403)
        groups = _groups(claims.get(self.settings.role_claim))
        role = next((role for role in ROLES if self.settings.roles[role] & groups), self.settings.default_role)
        return User(name, role, groups=tuple(sorted(groups)))


def _groups(value: Any) -> frozenset[str]:
    """Return the values of the role claim, a text or a list of texts. Other values are ignored."""
    values = [value] if isinstance(value, str) else value if isinstance(value, list) else []
    return frozenset(item for item in values[:MAX_GROUPS] if isinstance(item, str) and len(item) <= 256)


def _decode(token: str, keys: KeySet) -> dict[str, Any]:
    return jwt.decode(token, keys, algorithms=list(ALGORITHMS)).claims


def _base64(data: bytes) -> str:
    return urlsafe_b64encode(data).rstrip(b"=").decode()


def _printable(text: str) -> str:
    return "".join(c for c in text[:100] if c.isprintable())


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *arguments: object, **keywords: object) -> None:
        return None


async def _request_json(
    url: str, form: bytes | None = None, headers: Mapping[str, str] | None = None
) -> dict[str, Any]:
    return await asyncio.to_thread(_request, url, form, dict(headers or {}))


def _request(url: str, form: bytes | None, headers: dict[str, str]) -> dict[str, Any]:
    """Send a request to the provider. Returns the JSON object of the response. Raises
    LoginFailed."""
    request = urllib.request.Request(url, form, {"Accept": "application/json", **headers})
    try:
        with urllib.request.build_opener(_NoRedirects).open(request, timeout=REQUEST_TIMEOUT_S) as response:
            raw = response.read(MAX_RESPONSE_BYTES + 1)
    except urllib.error.HTTPError as error:
        raise LoginFailed(f"the identity provider returned the status {error.code}", 502) from None
    except (OSError, ValueError, HTTPException) as error:
        reason = getattr(error, "reason", error)
        raise LoginFailed(f"the identity provider does not respond: {_printable(str(reason))}", 502) from None
    try:
        document = json.loads(raw) if len(raw) <= MAX_RESPONSE_BYTES else None
    except (ValueError, RecursionError):
        document = None
    if not isinstance(document, dict):
        raise LoginFailed("the identity provider returned no JSON object", 502)
    return document
