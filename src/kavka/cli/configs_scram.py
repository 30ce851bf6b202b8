"""`kavka configs` for users: their SCRAM credentials."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from kavka.cli.options import UsageError
from kavka.cli.tool import ToolError

if TYPE_CHECKING:
    from kavka.client.admin import Admin
    from kavka.client.admin.types import ScramPassword

MECHANISMS = ("SCRAM-SHA-256", "SCRAM-SHA-512")
_CREDENTIAL = re.compile(r"(?:iterations=(?P<iterations>[0-9]{1,9}),)?password=(?P<password>.+)", re.DOTALL)


def applies(types: Sequence[str], added: Mapping[str, str], deleted: Sequence[str]) -> bool:
    """Whether the command changes SCRAM credentials."""
    return list(types) == ["users"] and any(name in MECHANISMS for name in (*added, *deleted))


def alter(admin: Admin, user: str, added: Mapping[str, str], deleted: Sequence[str]) -> None:
    if not user:
        raise UsageError(
            "The use of --entity-default or --user-defaults is not allowed with User SCRAM Credentials using "
            "--bootstrap-server."
        )
    if any(name not in MECHANISMS for name in (*added, *deleted)):
        raise ToolError(
            f"Cannot alter both quota and SCRAM credential configs simultaneously for '{user}' using "
            "--bootstrap-server."
        )
    changes: dict[str, ScramPassword | None] = {
        mechanism: _password(mechanism, text) for mechanism, text in added.items()
    }
    admin.alter_user_scram_credentials({user: changes | dict.fromkeys(deleted)})
    print(f"Completed updating config for user {user}.")


def _password(mechanism: str, text: str) -> ScramPassword:
    from kavka.client.admin.types import ScramPassword
    from kavka.security.credentials import MAX_ITERATIONS, MIN_ITERATIONS

    match = _CREDENTIAL.fullmatch(text)
    if match is None:
        raise ToolError(f"Invalid {mechanism}: expected [password=<password>] or [iterations=<n>,password=<password>]")
    iterations = int(match["iterations"] or MIN_ITERATIONS)
    if not MIN_ITERATIONS <= iterations <= MAX_ITERATIONS:
        raise ToolError(
            f"Iterations {iterations} is invalid for SCRAM mechanism {mechanism}: "
            f"it must be between {MIN_ITERATIONS} and {MAX_ITERATIONS}"
        )
    return ScramPassword(match["password"], iterations)


def credentials_of(admin: Admin, types: Sequence[str], names: Sequence[str]) -> dict[str, dict[str, int]]:
    """Return the iterations of SCRAM credentials by user and mechanism, for the command that
    describes users. The default user has none."""
    if list(types) != ["users"] or list(names) == [""]:
        return {}
    return dict(sorted(admin.describe_user_scram_credentials(names or None).items()))


def as_json(credentials: Mapping[str, Mapping[str, int]]) -> list[dict[str, Any]]:
    return [{"entity": {"user-principal": user}, "scram": dict(mechanisms)} for user, mechanisms in credentials.items()]


def print_credentials(credentials: Mapping[str, Mapping[str, int]]) -> None:
    for user, mechanisms in credentials.items():
        texts = ", ".join(f"{mechanism}=iterations={iterations}" for mechanism, iterations in mechanisms.items())
        print(f"SCRAM credential configs for user-principal '{user}' are {texts}")
