"""`topology.json`, beside the checkpoint: what the state there was made by. It is written once, before the first batch;
whatever starts later must fit it."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from kavka.pipeline.streams.errors import StreamsException


def kept(folder: Path) -> dict[str, Any] | None:
    try:
        found: dict[str, Any] = json.loads((folder / "topology.json").read_text())
    except FileNotFoundError:
        return None
    except ValueError as error:
        raise StreamsException(f"topology.json in {folder} cannot be read: {error}; clean_up()") from None
    return found


def keep(folder: Path, now: dict[str, Any], before: dict[str, Any] | None) -> None:
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
        return
    folder.mkdir(parents=True, exist_ok=True)
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
