"""The SCRAM credentials of users, in memory, and their changes in /config/users/<name>.

`DynamicConfig` follows the change notifications, so a change of any broker, of Kafka's tools or of
Kavka's tools is in effect within a second.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping

from kavka.metadata import paths
from kavka.metadata.dynamic_config import DynamicConfig
from kavka.security.credentials import (
    HASHES,
    CredentialError,
    NewUser,
    ScramCredential,
    format_credential,
    new_credential,
    parse_credential,
)
from kavka.security.sasl.scram import Lookup

logger = logging.getLogger(__name__)


class ScramCredentials:
    """Owns the credentials by mechanism and user. Only the loop thread uses it."""

    def __init__(self, configs: DynamicConfig) -> None:
        self._configs = configs
        self._credentials: dict[str, dict[str, ScramCredential]] = {mechanism: {} for mechanism in HASHES}
        for entity_path, values in configs.entities.items():
            self._on_change(entity_path, values)
        configs.entities.on_change.append(self._on_change)

    def lookup(self, mechanism: str) -> Lookup:
        """Return the function from a user's name to the current credential."""
        return self._credentials[mechanism].get

    def of_user(self, user: str) -> dict[str, ScramCredential]:
        """The credentials of a user by mechanism."""
        return {
            mechanism: credentials[user] for mechanism, credentials in self._credentials.items() if user in credentials
        }

    def users(self) -> list[str]:
        return sorted({user for credentials in self._credentials.values() for user in credentials})

    async def change(self, user: str, changes: Mapping[str, ScramCredential | None]) -> None:
        """Set or remove (None) the credentials of a user by mechanism. Other settings of the user
        stay. Raises StoreUnavailable."""

        def update(values: dict[str, str]) -> dict[str, str]:
            for mechanism, credential in changes.items():
                if credential is None:
                    values.pop(mechanism, None)
                else:
                    values[mechanism] = format_credential(credential)
            return values

        await self._configs.change_entity(user_entity(user), update)

    async def create(self, user: NewUser) -> None:
        """Create a credential unless the user has one for the mechanism. Raises
        StoreUnavailable."""
        if user.mechanism not in self.of_user(user.name):
            credential = new_credential(user.mechanism, user.password, user.iterations)
            await self.change(user.name, {user.mechanism: credential})

    def _on_change(self, entity_path: str, values: Mapping[str, str]) -> None:
        entity_type, _, node = entity_path.partition("/")
        if entity_type != paths.USER_CONFIGS or "/" in node or node == paths.DEFAULT_ENTITY:
            return
        user = paths.desanitize(node)
        for mechanism, credentials in self._credentials.items():
            text = values.get(mechanism)
            if text is None:
                credentials.pop(user, None)
                continue
            try:
                credentials[user] = parse_credential(text)
            except CredentialError as error:
                # A user whose credential cannot be read must not keep the previous password.
                credentials.pop(user, None)
                logger.error("Ignoring the %s credential of the user %s: %s", mechanism, user, error)


def user_entity(user: str) -> str:
    """The path of a user below /config."""
    return f"{paths.USER_CONFIGS}/{paths.entity_node(user)}"
