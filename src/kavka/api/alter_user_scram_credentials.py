"""AlterUserScramCredentials (key 51): sets and removes SCRAM credentials.

v0  flexible

The client salts the password. The broker derives the keys that it stores. The changes of one user
are written together, or not at all.
"""

from __future__ import annotations

from collections import Counter

from kavka.api.authorization import cluster
from kavka.api.context import RequestContext
from kavka.api.describe_user_scram_credentials import MECHANISM_NUMBERS
from kavka.api.registry import handles
from kavka.common.errors import ErrorCode, KafkaError
from kavka.common.turns import over_turns
from kavka.metadata.store import StoreError
from kavka.protocol.api_keys import ApiKey
from kavka.protocol.messages.alter_user_scram_credentials import (
    AlterUserScramCredentialsRequest,
    AlterUserScramCredentialsResponse,
    AlterUserScramCredentialsResult,
    ScramCredentialDeletion,
    ScramCredentialUpsertion,
)
from kavka.security.acls import Operation
from kavka.security.credentials import (
    HASHES,
    MAX_ITERATIONS,
    MIN_ITERATIONS,
    ScramCredential,
    credential_of_salted_password,
)

_MECHANISMS = {number: mechanism for mechanism, number in MECHANISM_NUMBERS.items()}
_NO_RESULT = KafkaError(ErrorCode.NONE)


def _error_response(
    request: AlterUserScramCredentialsRequest, version: int, error: KafkaError
) -> AlterUserScramCredentialsResponse:
    users = dict.fromkeys(
        [change.name for change in request.deletions] + [change.name for change in request.upsertions]
    )
    return AlterUserScramCredentialsResponse(results=[_result(user, error) for user in users])


@handles(ApiKey.ALTER_USER_SCRAM_CREDENTIALS, versions=(0, 0), on_error=_error_response, needs=cluster(Operation.ALTER))
async def handle(ctx: RequestContext, request: AlterUserScramCredentialsRequest) -> AlterUserScramCredentialsResponse:
    all_changes: list[ScramCredentialDeletion | ScramCredentialUpsertion] = [*request.deletions, *request.upsertions]
    counts = Counter((change.name, change.mechanism) for change in all_changes)
    duplicates = {name for (name, _), count in counts.items() if count > 1}
    changes: dict[str, dict[str, ScramCredential | None]] = {}
    errors: dict[str, KafkaError] = {}
    async for change in over_turns(all_changes):
        user = change.name
        of_user = changes.setdefault(user, {})
        try:
            if user in duplicates:
                raise KafkaError(
                    ErrorCode.DUPLICATE_RESOURCE, "A user credential cannot be altered twice in the same request"
                )
            mechanism = _mechanism(user, change.mechanism)
            if isinstance(change, ScramCredentialDeletion):
                _check_deletion(ctx, user, mechanism)
                of_user[mechanism] = None
            else:
                of_user[mechanism] = _credential(mechanism, change)
        except KafkaError as error:
            errors.setdefault(user, error)
    async for user, of_user in over_turns(changes.items()):
        if user not in errors:
            try:
                await ctx.broker.scram_credentials.change(user, of_user)
            except StoreError as error:
                errors[user] = KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR, str(error))
    return AlterUserScramCredentialsResponse(
        results=[_result(user, errors.get(user, _NO_RESULT)) async for user in over_turns(changes)]
    )


def _mechanism(user: str, number: int) -> str:
    if not user:
        raise KafkaError(ErrorCode.UNACCEPTABLE_CREDENTIAL, "Username must not be empty")
    mechanism = _MECHANISMS.get(number)
    if mechanism is None:
        raise KafkaError(ErrorCode.UNSUPPORTED_SASL_MECHANISM, "Unknown SCRAM mechanism")
    return mechanism


def _check_deletion(ctx: RequestContext, user: str, mechanism: str) -> None:
    if mechanism not in ctx.broker.scram_credentials.of_user(user):
        raise KafkaError(ErrorCode.RESOURCE_NOT_FOUND, "Attempt to delete a user credential that does not exist")


def _credential(mechanism: str, change: ScramCredentialUpsertion) -> ScramCredential:
    if change.iterations < MIN_ITERATIONS:
        raise KafkaError(ErrorCode.UNACCEPTABLE_CREDENTIAL, "Too few iterations")
    if change.iterations > MAX_ITERATIONS:
        raise KafkaError(ErrorCode.UNACCEPTABLE_CREDENTIAL, "Too many iterations")
    salt, salted_password = bytes(change.salt), bytes(change.salted_password)
    if not salt or not salted_password:
        raise KafkaError(ErrorCode.UNACCEPTABLE_CREDENTIAL, "Salt and salted password must not be empty")
    assert mechanism in HASHES
    return credential_of_salted_password(mechanism, salted_password, salt, change.iterations)


def _result(user: str, error: KafkaError) -> AlterUserScramCredentialsResult:
    return AlterUserScramCredentialsResult(
        user=user, error_code=int(error.code), error_message=error.message if error.code else None
    )
