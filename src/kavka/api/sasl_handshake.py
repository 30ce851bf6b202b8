"""SaslHandshake (key 17): the SASL mechanism of the connection.

v0  the following frames are raw tokens
v1  the tokens are sent in SaslAuthenticate

`network/authentication.py` handles this request on listeners with SASL. Other listeners respond
with ILLEGAL_SASL_STATE, as in Kafka.
"""

from __future__ import annotations

from kavka.api.context import RequestContext
from kavka.api.registry import handles
from kavka.common.errors import ErrorCode
from kavka.protocol.api_keys import ApiKey
from kavka.protocol.messages.sasl_handshake import SaslHandshakeRequest, SaslHandshakeResponse


@handles(ApiKey.SASL_HANDSHAKE, versions=(0, 1))
def handle(ctx: RequestContext, request: SaslHandshakeRequest) -> SaslHandshakeResponse:
    return SaslHandshakeResponse(error_code=int(ErrorCode.ILLEGAL_SASL_STATE))
