"""[pure] Delegation tokens: a short-lived credential that a user creates, for example for the tasks
of a job. A client authenticates with SCRAM: the token's id is the user name, the base64 text of its
HMAC is the password, and the extension is `tokenauth=true`.

The HMAC is not stored. It is HMAC-SHA512 of the id under `delegation.token.secret.key`, which all
brokers share. The stored text is Kafka's JSON, version 3.
"""

from __future__ import annotations

import hashlib
import hmac
import json
from base64 import b64encode
from dataclasses import dataclass

from kavka.security.principal import Principal

VERSION = 3


class TokenFormatError(ValueError):
    """The stored text of a token is invalid."""


@dataclass(frozen=True)
class DelegationToken:
    id: str
    owner: Principal
    requester: Principal
    renewers: tuple[Principal, ...]
    issued_at_ms: int
    max_at_ms: int
    expires_at_ms: int

    def is_expired(self, now_ms: int) -> bool:
        return now_ms > min(self.expires_at_ms, self.max_at_ms)

    def belongs_to(self, principal: Principal) -> bool:
        """Whether the principal may see, renew and expire the token."""
        return principal in (self.owner, self.requester, *self.renewers)


def token_hmac(secret: str, token_id: str) -> bytes:
    return hmac.digest(secret.encode(), token_id.encode(), hashlib.sha512)


def token_password(secret: str, token_id: str) -> str:
    """The password of SCRAM."""
    return b64encode(token_hmac(secret, token_id)).decode()


def parse_principal(text: str) -> Principal:
    kind, colon, name = text.partition(":")
    if not colon or not kind or not name:
        raise TokenFormatError("a principal is not written as type:name")
    return Principal(kind, name)


def format_token(token: DelegationToken) -> bytes:
    return json.dumps(
        {
            "version": VERSION,
            "owner": str(token.owner),
            "tokenRequester": str(token.requester),
            "renewers": [str(renewer) for renewer in token.renewers],
            "issueTimestamp": token.issued_at_ms,
            "maxTimestamp": token.max_at_ms,
            "expiryTimestamp": token.expires_at_ms,
            "tokenId": token.id,
        },
        separators=(",", ":"),
    ).encode()


def parse_token(data: bytes | None) -> DelegationToken:
    """Parse the stored text of version 1 to 3. Raises TokenFormatError."""
    try:
        fields = json.loads(data or b"")
        owner = parse_principal(fields["owner"])
        return DelegationToken(
            str(fields["tokenId"]),
            owner,
            parse_principal(fields["tokenRequester"]) if "tokenRequester" in fields else owner,
            tuple(parse_principal(renewer) for renewer in fields.get("renewers", ())),
            int(fields["issueTimestamp"]),
            int(fields["maxTimestamp"]),
            int(fields["expiryTimestamp"]),
        )
    except TokenFormatError:
        raise
    except (ValueError, KeyError, TypeError, AttributeError):
        raise TokenFormatError("it is not the JSON of a delegation token") from None
