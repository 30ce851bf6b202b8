"""SaslAuthenticate (key 36): one token of the SASL exchange.

v0  error code and message in the response
v1  session_lifetime_ms, after which the client must authenticate again
v2  flexible

`network/authentication.py` handles this request on listeners with SASL. Other listeners respond
with ILLEGAL_SASL_STATE, as in Kafka.
"""

from __future__ import annotations

from kavka.api.context import RequestContext
from kavka.api.registry import handles
from kavka.common.errors import ErrorCode
from kavka.protocol.api_keys import ApiKey
from kavka.protocol.messages.sasl_authenticate import SaslAuthenticateRequest, SaslAuthenticateResponse


@handles(ApiKey.SASL_AUTHENTICATE, versions=(0, 2))
def handle(ctx: RequestContext, request: SaslAuthenticateRequest) -> SaslAuthenticateResponse:
    return SaslAuthenticateResponse(
        error_code=int(ErrorCode.ILLEGAL_SASL_STATE),
        error_message="SaslAuthenticate request received on a listener without SASL",
    )
