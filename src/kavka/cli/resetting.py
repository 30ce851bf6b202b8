"""Parts shared by the tools that reset offsets of groups."""

from __future__ import annotations

from kavka.cli.options import Option
from kavka.cli.tool import ToolError
from kavka.client.admin.resets import BadReset, Offsets, read_offsets_csv

TO_DATETIME = Option(
    "to-datetime",
    "Reset to the first records at or after this time: YYYY-MM-DDThh:mm:ss.sss, by default in UTC.",
    "datetime",
)
BY_DURATION = Option("by-duration", "Reset to the first records of this duration before now: PnDTnHnMnS.", "duration")

Plan = dict[str, Offsets]
"""New offsets by group."""


def read_plan(path: str, groups: list[str]) -> Plan:
    """Read the new offsets of the groups from a CSV file. Raise ToolError if the file is
    invalid."""
    with open(path, encoding="utf-8", newline="") as file:
        try:
            return read_offsets_csv(file, groups, path)
        except UnicodeDecodeError:
            raise ToolError(f"{path}: not valid UTF-8") from None
        except BadReset as error:
            raise ToolError(str(error)) from None
