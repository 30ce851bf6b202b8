"""DescribeUserScramCredentials (key 50): the SCRAM mechanisms and iterations of users.

v0  flexible
"""

from __future__ import annotations

from collections import Counter

from kavka.api.authorization import cluster
from kavka.api.context import RequestContext
from kavka.api.registry import handles
from kavka.common.errors import ErrorCode, KafkaError
from kavka.protocol.api_keys import ApiKey
from kavka.protocol.messages.describe_user_scram_credentials import (
    CredentialInfo,
    DescribeUserScramCredentialsRequest,
    DescribeUserScramCredentialsResponse,
    DescribeUserScramCredentialsResult,
)
from kavka.security.acls import Operation

# The numbers of the mechanisms in requests and responses.
MECHANISM_NUMBERS = {"SCRAM-SHA-256": 1, "SCRAM-SHA-512": 2}


def _on_error(
    request: DescribeUserScramCredentialsRequest, version: int, error: KafkaError
) -> DescribeUserScramCredentialsResponse:
    code, message = int(error.code), error.message
    return DescribeUserScramCredentialsResponse(
        error_code=code,
        error_message=message,
        results=[
            DescribeUserScramCredentialsResult(user=user.name, error_code=code, error_message=message)
            for user in request.users or ()
        ],
    )


@handles(ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS, versions=(0, 0), on_error=_on_error, needs=cluster(Operation.DESCRIBE))
def handle(ctx: RequestContext, request: DescribeUserScramCredentialsRequest) -> DescribeUserScramCredentialsResponse:
    credentials = ctx.broker.scram_credentials
    names = [user.name for user in request.users] if request.users else credentials.users()
    counts = Counter(names)
    return DescribeUserScramCredentialsResponse(results=[_result(ctx, name, counts[name]) for name in counts])


def _result(ctx: RequestContext, user: str, count: int) -> DescribeUserScramCredentialsResult:
    if count > 1:
        return DescribeUserScramCredentialsResult(
            user=user,
            error_code=int(ErrorCode.DUPLICATE_RESOURCE),
            error_message=f"Cannot describe SCRAM credentials for the same user twice in a single request: {user}",
        )
    credentials = ctx.broker.scram_credentials.of_user(user)
    if not credentials:
        return DescribeUserScramCredentialsResult(
            user=user,
            error_code=int(ErrorCode.RESOURCE_NOT_FOUND),
            error_message=f"Attempt to describe a user credential that does not exist: {user}",
        )
    return DescribeUserScramCredentialsResult(
        user=user,
        credential_infos=[
            CredentialInfo(mechanism=MECHANISM_NUMBERS[mechanism], iterations=credential.iterations)
            for mechanism, credential in credentials.items()
        ],
    )
