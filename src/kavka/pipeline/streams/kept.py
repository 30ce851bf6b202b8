"""`topology.json`, beside the checkpoint: what the state there was made by. It is written once,
before the first batch; whatever starts later must fit it.

`layout` names the stores of each stateful sub-topology in the order that their state is numbered by
(`Plan.layout`). Earlier versions did not write it: they numbered stores in the order in which the
topology connects them."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from kavka.pipeline.streams.errors import StreamsException
from kavka.pipeline.streams.state_folder import create_own_folder

logger = logging.getLogger(__name__)


def kept(folder: Path) -> dict[str, Any] | None:
    try:
        found: dict[str, Any] = json.loads((folder / "topology.json").read_text())
    except FileNotFoundError:
        return None
    except ValueError as error:
        raise StreamsException(f"topology.json in {folder} cannot be read: {error}; clean_up()") from None
    return found


def keep(
    folder: Path, now: dict[str, Any], before: dict[str, Any] | None, in_users_order: Collection[int] = ()
) -> None:
    """`in_users_order` are the sub-topologies whose order of stores an earlier version did not
    write down."""
    if before is not None:
        if before["digest"] != now["digest"]:
            raise StreamsException(
                f"the state in {folder} is of another topology ({_difference(before, now)}): give a new "
                "application.id, or forget the state with clean_up()"
            )
        if before.get("native", []) != now.get("native", []):
            raise StreamsException(
                f"the offsets in {folder} are of a topology in which Spark alone did the steps after topics "
                f"{before.get('native', [])}, and now those after {now.get('native', [])}: give a new "
                "application.id, or forget them with clean_up()"
            )
        if before.get("summed", False) and not now["summed"]:
            raise StreamsException(
                f"the counts in {folder} were added up by Spark itself, which cannot be done with these settings (no "
                "cache, a handler of processing exceptions, an extractor of timestamps) or where a later step needs to "
                "know what they were before (a filter): set them as they were, give a new application.id, or forget "
                "the counts with clean_up()"
            )
        if "layout" in before:
            return
        for sub in in_users_order:
            logger.warning(
                "topology.json in %s does not say in which order the stores of sub-topology %s were connected; the "
                "state is read in the order %s. If the order was changed since, forget the state with clean_up()",
                folder,
                sub,
                ", ".join(now["layout"][str(sub)]),
            )
        now = {**before, "layout": now["layout"]}
    _write(folder, now)


def layout_of(before: Mapping[str, Any] | None) -> dict[int, tuple[str, ...]] | None:
    """The order of the stores in the state; None where there is no state, or where an earlier
    version wrote it."""
    layout = (before or {}).get("layout")
    return None if layout is None else {int(sub): tuple(stores) for sub, stores in layout.items()}


def _write(folder: Path, now: Mapping[str, Any]) -> None:
    create_own_folder(folder)
    temporary = folder / "topology.json.tmp"
    with temporary.open("w") as file:
        json.dump(now, file)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(folder / "topology.json")


def _difference(before: Mapping[str, Any], now: Mapping[str, Any]) -> str:
    one, two = before.get("state", []), now["state"]
    if len(one) != len(two):
        return f"it has {len(two)} parts with state, and had {len(one)}"
    for old, new in zip(one, two, strict=True):
        for name in ("topics", "nodes", "stores", "tasks"):
            if json.dumps(old.get(name)) != json.dumps(new[name]):
                return f"sub-topology {new['sub']} has the {name} {new[name]}, and had {old.get(name)}"
    return "it is not the same"
