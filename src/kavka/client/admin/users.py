"""SCRAM credentials of users."""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Iterable, Mapping

from kavka.client.admin.base import AdminBase, Outcome, by_key
from kavka.client.admin.types import ScramPassword
from kavka.client.errors import error_of
from kavka.common.errors import ErrorCode
from kavka.protocol.messages import alter_user_scram_credentials, describe_user_scram_credentials
from kavka.security.credentials import HASHES

# The numbers of the mechanisms in requests and responses.
_NUMBERS = {"SCRAM-SHA-256": 1, "SCRAM-SHA-512": 2}
_NAMES = {number: mechanism for mechanism, number in _NUMBERS.items()}
_SALT_BYTES = 32


class Users(AdminBase):
    async def describe_user_scram_credentials(
        self, users: Iterable[str] | None = None, *, timeout: float | None = None
    ) -> dict[str, dict[str, int]]:
        """Return the iterations of each user's SCRAM credentials by mechanism; by default of all
        users. A user without credentials is not in the result."""
        names = None if users is None else list(dict.fromkeys(users))

        async def attempt() -> dict[str, dict[str, int]]:
            request = describe_user_scram_credentials.DescribeUserScramCredentialsRequest(
                users=None if names is None else [describe_user_scram_credentials.UserName(name=name) for name in names]
            )
            response = await self._request(None, request)
            for result in (response, *response.results):
                if result.error_code not in (ErrorCode.NONE, ErrorCode.RESOURCE_NOT_FOUND):
                    raise error_of(result.error_code, result.error_message)
            return {
                result.user: {
                    _NAMES.get(info.mechanism, str(info.mechanism)): info.iterations
                    for info in sorted(result.credential_infos, key=lambda info: info.mechanism)
                }
                for result in response.results
                if not result.error_code
            }

        return await self._once("describe_user_scram_credentials", attempt, timeout)

    async def alter_user_scram_credentials(
        self, changes: Mapping[str, Mapping[str, ScramPassword | str | None]], *, timeout: float | None = None
    ) -> None:
        """Set SCRAM credentials: by user and mechanism a password, or None to delete the
        credential. The password itself is not sent. Each mechanism is one request."""
        upsertions, deletions = {}, {}
        for user, of_user in changes.items():
            for mechanism, password in of_user.items():
                if mechanism not in _NUMBERS:
                    raise ValueError(f"{mechanism} is not a SCRAM mechanism: {', '.join(_NUMBERS)}")
                if password is None:
                    deletions[user, mechanism] = alter_user_scram_credentials.ScramCredentialDeletion(
                        name=user, mechanism=_NUMBERS[mechanism]
                    )
                else:
                    upsertions[user, mechanism] = _upsertion(user, mechanism, password)

        # Kafka 4 rejects a request with two mechanisms of one user.
        for mechanism in _NUMBERS:
            users = [user for user in changes if mechanism in changes[user]]

            async def attempt(names: list[str], mechanism: str = mechanism) -> Outcome[str, None]:
                request = alter_user_scram_credentials.AlterUserScramCredentialsRequest(
                    deletions=[deletions[name, mechanism] for name in names if (name, mechanism) in deletions],
                    upsertions=[upsertions[name, mechanism] for name in names if (name, mechanism) in upsertions],
                )
                response = await self._request(await self._controller(), request)
                return by_key(response.results, lambda result: result.user, lambda result: None)

            await self._each(users, attempt, timeout)


def _upsertion(
    user: str, mechanism: str, password: ScramPassword | str
) -> alter_user_scram_credentials.ScramCredentialUpsertion:
    if isinstance(password, str):
        password = ScramPassword(password)
    salt = secrets.token_bytes(_SALT_BYTES)
    salted = hashlib.pbkdf2_hmac(HASHES[mechanism], password.password.encode(), salt, password.iterations)
    return alter_user_scram_credentials.ScramCredentialUpsertion(
        name=user,
        mechanism=_NUMBERS[mechanism],
        iterations=password.iterations,
        salt=salt,
        salted_password=salted,
    )
