"""An identity provider: a token endpoint whose tokens are signed, and its JSON Web Key Set.

Clients of OAUTHBEARER use client credentials, and the key set in a file. Logins of the console use
OpenID Connect: discovery, and the authorization code flow with PKCE. The user of a login is
`login_user`; `login_claims` replace claims of the ID token, and `login_key` its key."""

from __future__ import annotations

import hashlib
import json
import threading
import time
import urllib.request
from base64 import b64decode, b64encode, urlsafe_b64encode
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Self
from urllib.parse import parse_qs, parse_qsl, urlencode

from joserfc import jwt
from joserfc.jwk import KeySet, RSAKey

ISSUER = "https://idp.example.com"
AUDIENCE = "kafka"
SECRET = "client-secret"
ALGORITHM = "RS256"


class IdentityProvider:
    """The subject of a token is the client id of its request, and its lifetime is `lifetime_s`."""

    def __init__(self, folder: Path, lifetime_s: float = 300.0) -> None:
        self.lifetime_s = lifetime_s
        self.requests = 0
        self.login_user = "anna@example.com"
        self.login_claims: dict[str, object] = {}
        self.login_key: Any = None
        self.discovery: dict[str, object] = {}
        self._codes: dict[str, dict[str, str]] = {}
        self._lock = threading.Lock()
        self._key_file = folder / "keys.json"
        self.rotate_key("k1")
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(self))
        threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True).start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    @property
    def token_url(self) -> str:
        return f"{self.url}/token"

    def rotate_key(self, key_id: str) -> None:
        """Replace the key. Tokens of earlier keys are not valid any more."""
        self._key = RSAKey.generate_key(2048, {"kid": key_id, "alg": ALGORITHM, "use": "sig"})
        temporary = self._key_file.with_suffix(".new")
        temporary.write_text(json.dumps(KeySet([self._key]).as_dict(private=False)))
        temporary.rename(self._key_file)

    def broker_settings(self) -> dict[str, str]:
        return {
            "sasl.oauthbearer.jwks.endpoint.url": f"file://{self._key_file}",
            "sasl.oauthbearer.expected.issuer": ISSUER,
            "sasl.oauthbearer.expected.audience": AUDIENCE,
            "sasl.oauthbearer.clock.skew.seconds": "0",
        }

    def sign(self, user: str, key: Any = None, **claims: object) -> str:
        """Return a token with these claims instead of the usual values."""
        now = int(time.time())
        usual = {"sub": user, "iss": ISSUER, "aud": AUDIENCE, "iat": now, "exp": now + self.lifetime_s}
        header = {"alg": ALGORITHM, "kid": self._key.kid}
        return jwt.encode(header, {**usual, **claims}, key or self._key, algorithms=[ALGORITHM])

    def respond(self, authorization: str, form: dict[str, list[str]]) -> tuple[int, dict[str, object]]:
        with self._lock:
            self.requests += 1
        client_id, _, secret = b64decode(authorization.removeprefix("Basic ")).decode().partition(":")
        if form.get("grant_type") == ["authorization_code"]:
            return self._id_token(client_id, secret, {name: values[0] for name, values in form.items()})
        if form.get("grant_type") != ["client_credentials"]:
            return 400, {"error": "unsupported_grant_type"}
        if secret != SECRET:
            return 401, {"error": "invalid_client"}
        token = self.sign(client_id)
        return 200, {"access_token": token, "token_type": "Bearer", "expires_in": int(self.lifetime_s)}

    # --- OpenID Connect

    def documents(self) -> dict[str, dict[str, Any]]:
        """Return the documents of discovery, by path."""
        endpoints = {
            "issuer": self.url,
            "authorization_endpoint": f"{self.url}/authorize",
            "token_endpoint": self.token_url,
            "jwks_uri": f"{self.url}/keys",
        }
        return {
            "/.well-known/openid-configuration": {**endpoints, **self.discovery},
            "/keys": json.loads(self._key_file.read_text()),
        }

    def authorize(self, query: dict[str, str]) -> str:
        """Log `login_user` in. Returns the URL of the redirect."""
        assert query["response_type"] == "code" and query["code_challenge_method"] == "S256"
        code = f"code-{len(self._codes)}"
        self._codes[code] = query
        return f"{query['redirect_uri']}?{urlencode({'code': code, 'state': query['state'], 'iss': self.url})}"

    def _id_token(self, client_id: str, secret: str, form: dict[str, str]) -> tuple[int, dict[str, object]]:
        login = self._codes.pop(form["code"], None)
        challenge = urlsafe_b64encode(hashlib.sha256(form["code_verifier"].encode()).digest()).rstrip(b"=").decode()
        if login is None or challenge != login["code_challenge"] or form["redirect_uri"] != login["redirect_uri"]:
            return 400, {"error": "invalid_grant"}
        if secret != SECRET or client_id != login["client_id"]:
            return 401, {"error": "invalid_client"}
        claims = {
            "iss": self.url, "aud": client_id, "nonce": login["nonce"], "preferred_username": self.login_user,
            **self.login_claims,
        }  # fmt: skip
        return 200, {"id_token": self.sign(self.login_user, self.login_key, **claims), "token_type": "Bearer"}

    def console_settings(self, folder: Path, **settings: str) -> Path:
        """Write the file of `kavka console --oidc`."""
        (folder / "client-secret").write_text(f"{SECRET}\n")
        lines = {
            "issuer": self.url, "client.id": "console", "client.secret.file": "client-secret",
            "role.admin": "platform, sre", "role.view": "staff", **settings,
        }  # fmt: skip
        path = folder / "oidc.properties"
        path.write_text("".join(f"{name}={value}\n" for name, value in lines.items()))
        return path

    def fetch_token(self, user: str) -> str:
        """Request a token as an application does whose client has no flow for it."""
        credentials = b64encode(f"{user}:{SECRET}".encode()).decode()
        body = urlencode({"grant_type": "client_credentials"}).encode()
        request = urllib.request.Request(self.token_url, body, {"Authorization": f"Basic {credentials}"})
        with urllib.request.urlopen(request, timeout=30) as response:
            token: str = json.load(response)["access_token"]
        return token

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


def _handler(provider: IdentityProvider) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            form = parse_qs(self.rfile.read(int(self.headers["Content-Length"])).decode())
            status, content = provider.respond(self.headers["Authorization"] or "", form)
            body = json.dumps(content).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def do_GET(self) -> None:
            path, _, query = self.path.partition("?")
            if path == "/authorize":
                self.send_response(302)
                self.send_header("Location", provider.authorize(dict(parse_qsl(query))))
                self.end_headers()
                return
            document = provider.documents().get(path)
            self.send_response(404 if document is None else 200)
            self.end_headers()
            self.wfile.write(json.dumps(document).encode())

        def log_message(self, *args: Any) -> None:
            pass

    return Handler
