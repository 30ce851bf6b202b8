"""An identity provider for OAUTHBEARER: a token endpoint (client credentials) whose tokens are
signed, and its JSON Web Key Set in a file."""

from __future__ import annotations

import json
import threading
import time
import urllib.request
from base64 import b64decode, b64encode
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Self
from urllib.parse import parse_qs, urlencode

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
        self._lock = threading.Lock()
        self._key_file = folder / "keys.json"
        self.rotate_key("k1")
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(self))
        threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True).start()

    @property
    def token_url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}/token"

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
        if form.get("grant_type") != ["client_credentials"]:
            return 400, {"error": "unsupported_grant_type"}
        if secret != SECRET:
            return 401, {"error": "invalid_client"}
        token = self.sign(client_id)
        return 200, {"access_token": token, "token_type": "Bearer", "expires_in": int(self.lifetime_s)}

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

        def log_message(self, *args: Any) -> None:
            pass

    return Handler
