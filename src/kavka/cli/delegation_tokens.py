"""`kavka delegation-tokens` (`kafka-delegation-tokens`): create, renew, expire and describe
delegation tokens."""

from __future__ import annotations

import binascii
from collections.abc import Iterable
from typing import TYPE_CHECKING

from kavka.cli.connecting import COMMAND_CONFIG, JSON, admin_for, connection_options
from kavka.cli.options import Arguments, Command, Option
from kavka.cli.output import print_json
from kavka.cli.tool import ToolError, run

if TYPE_CHECKING:
    from kavka.client.admin import Admin
    from kavka.client.admin.types import DelegationToken

COMMAND = Command(
    "delegation-tokens",
    "Create, renew, expire and describe delegation tokens, with which clients authenticate for a limited time. "
    "The broker needs delegation.token.secret.key, and the tool must authenticate (--command-config).",
    (
        Option("create", "Create a token of the user, or of --owner-principal."),
        Option("renew", "Move the expiry of a token."),
        Option("expire", "End a token."),
        Option("describe", "Show the tokens that the user may see, or only those of --owner-principal."),
        Option("max-life-time-period", "Maximum lifetime of the new token in milliseconds; -1 for the broker's "
               "delegation.token.max.lifetime.ms.", "max-life-time-period", int),
        Option("renewer-principal", "A principal that may renew the new token, for example User:bob.",
               "renewer-principal", repeated=True, optional=True),
        Option("owner-principal", "The owner of the new token, or an owner of the tokens to show, for example "
               "User:alice.", "owner-principal", repeated=True, optional=True),
        Option("hmac", "The HMAC of the token, as --create prints it.", "hmac"),
        Option("renew-time-period", "Time from now to the new expiry in milliseconds; -1 for the broker's "
               "delegation.token.expiry.time.ms.", "renew-time-period", int),
        Option("expiry-time-period", "Time from now to the end of the token in milliseconds; -1 ends it at once.",
               "expiry-time-period", int),
        JSON,
        *connection_options(),
    ),
    actions=("create", "renew", "expire", "describe"),
    examples=(
        "kavka delegation-tokens --bootstrap-server localhost:9092 --command-config alice.properties --create "
        "--max-life-time-period -1 --renewer-principal User:bob",
        "kavka delegation-tokens --bootstrap-server localhost:9092 --command-config alice.properties --describe",
    ),
)  # fmt: skip

# The options that an action requires, and those that it does not allow.
RULES = {
    "create": (("max-life-time-period",), ("hmac", "renew-time-period", "expiry-time-period")),
    "renew": (
        ("hmac", "renew-time-period"),
        ("renewer-principal", "max-life-time-period", "expiry-time-period", "owner-principal"),
    ),
    "expire": (("hmac", "expiry-time-period"), ("max-life-time-period", "renew-time-period", "owner-principal")),
    "describe": ((), ("renew-time-period", "max-life-time-period", "hmac", "expiry-time-period")),
}
DATE_FORMAT = "yyyy-MM-dd'T'HH:mm"
ROW = "\n{:<15} {:<30} {:<15} {:<15} {:<25} {:<15} {:<15} {:<15}"
TITLES = ("TOKENID", "HMAC", "OWNER", "REQUESTER", "RENEWERS", "ISSUEDATE", "EXPIRYDATE", "MAXDATE")


def main(argv: list[str]) -> int:
    return run(COMMAND, argv, _body)


def _body(args: Arguments) -> None:
    args.require(COMMAND_CONFIG.name)
    action = args.action()
    required, forbidden = RULES[action]
    args.require(*required)
    args.forbid(action, *forbidden)
    owners = _principals(args["owner-principal"])
    renewers = _principals(args["renewer-principal"])
    with admin_for(args) as admin:
        if action == "create":
            _create(admin, args, renewers, owners)
        elif action == "describe":
            _describe(admin, args, owners)
        else:
            _change_expiry(admin, args, action)


def _principals(texts: Iterable[str]) -> list[str]:
    principals = [text.strip() for text in texts if text]
    for text in principals:
        principal_type, _, name = text.partition(":")
        if not principal_type or not name:
            raise ToolError(f"expected a string in format principalType:principalName but got {text}")
    return principals


def _create(admin: Admin, args: Arguments, renewers: list[str], owners: list[str]) -> None:
    period = args["max-life-time-period"]
    if not args["json"]:
        print(f"Calling create token operation with renewers :{_list_text(renewers)} , max-life-time-period :{period}")
    token = admin.create_delegation_token(
        renewers=renewers, max_lifetime_ms=period, owner=owners[0] if owners else None
    )
    if args["json"]:
        print_json(_as_json(token))
        return
    print(f"Created delegation token with tokenId : {token.token_id}")
    _print_tokens([token])


def _change_expiry(admin: Admin, args: Arguments, action: str) -> None:
    from kavka.cli.java_text import date_text

    hmac = args["hmac"]
    period = args["renew-time-period" if action == "renew" else "expiry-time-period"]
    if not args["json"]:
        print(f"Calling {action} token operation with hmac :{hmac} , {action}-time-period :{period}")
    try:
        if action == "renew":
            expiry = admin.renew_delegation_token(hmac, renew_period_ms=period)
        else:
            expiry = admin.expire_delegation_token(hmac, expiry_period_ms=period)
    except binascii.Error as error:
        raise ToolError(f"--hmac is not base64: {error}") from None
    if args["json"]:
        print_json({"expiryTimestamp": expiry})
        return
    print(f"Completed {action} operation. New expiry date : {date_text(DATE_FORMAT, expiry)}", end="")


def _describe(admin: Admin, args: Arguments, owners: list[str]) -> None:
    if not args["json"]:
        if owners:
            print(f"Calling describe token operation for owners: {_list_text(owners)}")
        else:
            print("Calling describe token operation for current user.")
    tokens = admin.describe_delegation_token(owners or None)
    if args["json"]:
        print_json([_as_json(token) for token in tokens])
        return
    print(f"Total number of tokens : {len(tokens)}", end="")
    _print_tokens(tokens)


def _print_tokens(tokens: Iterable[DelegationToken]) -> None:
    from kavka.cli.java_text import date_text

    print(ROW.format(*TITLES))
    for token in tokens:
        times = (token.issued_at_ms, token.expires_at_ms, token.max_at_ms)
        principals = (token.owner, token.requester, _list_text(token.renewers))
        dates = (date_text(DATE_FORMAT, time) for time in times)
        print(ROW.format(token.token_id, token.password, *principals, *dates))


def _list_text(items: Iterable[str]) -> str:
    return f"[{', '.join(items)}]"


def _as_json(token: DelegationToken) -> dict[str, object]:
    return {
        "tokenId": token.token_id,
        "hmac": token.password,
        "owner": token.owner,
        "requester": token.requester,
        "renewers": list(token.renewers),
        "issueTimestamp": token.issued_at_ms,
        "expiryTimestamp": token.expires_at_ms,
        "maxTimestamp": token.max_at_ms,
    }
