"""What the tools that set offsets of groups have in common."""

from __future__ import annotations

from kavka.cli.options import Option
from kavka.cli.tool import ToolError
from kavka.client.admin.resets import BadReset, Offsets, read_offsets_csv

TO_DATETIME = Option(
    "to-datetime",
    "To the first records of this time or later: YYYY-MM-DDThh:mm:ss.sss, in UTC unless a zone follows.",
    "datetime",
)
BY_DURATION = Option("by-duration", "To the first records of the time this long ago: PnDTnHnMnS.", "duration")

# By group.
Plan = dict[str, Offsets]


def read_plan(path: str, groups: list[str]) -> Plan:
    """What a CSV file says for these groups."""
    with open(path, encoding="utf-8", newline="") as file:
        try:
            return read_offsets_csv(file, groups, path)
        except UnicodeDecodeError:
            raise ToolError(f"{path}: this is not text in UTF-8") from None
        except BadReset as error:
            raise ToolError(str(error)) from None
