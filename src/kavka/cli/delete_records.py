"""`kavka delete-records` (`kafka-delete-records`): delete the oldest records of partitions."""

from __future__ import annotations

from kavka.cli.connecting import JSON, admin_for, connection_options
from kavka.cli.options import Arguments, Command, Option
from kavka.cli.output import print_json
from kavka.cli.partitions import member, partition_entries, read_json
from kavka.cli.tool import ToolError, reason, run
from kavka.common.types import TopicPartition

COMMAND = Command(
    "delete-records",
    "Delete the records of partitions before an offset, which becomes the log start offset.",
    (
        Option(
            "offset-json-file",
            'The offsets: {"partitions": [{"topic": "foo", "partition": 1, "offset": 1}], "version": 1}. '
            "The offset -1 deletes all records.",
            "Offset json file path",
            required=True,
            completes="file",
        ),
        JSON,
        *connection_options(),
    ),
    examples=("kavka delete-records --bootstrap-server localhost:9092 --offset-json-file delete.json",),
)


def main(argv: list[str]) -> int:
    return run(COMMAND, argv, _body)


def read_offsets(path: str) -> dict[TopicPartition, int]:
    data = read_json(path)
    if isinstance(data, dict) and data.get("version", 1) != 1:
        raise ToolError(f"{path}: Not supported version field value {data['version']}")
    offsets: dict[TopicPartition, int] = {}
    for tp, entry, location in partition_entries(data, path):
        if tp in offsets:
            raise ToolError(f"Offset json file contains duplicate topic partitions: {tp}")
        offsets[tp] = member(entry, "offset", int, location)
    return offsets


def _body(args: Arguments) -> int:
    from kavka.client.admin import AdminError

    offsets = read_offsets(args["offset-json-file"])
    with admin_for(args) as admin:
        if not args["json"]:
            print("Executing records delete operation", flush=True)
        errors = {}
        try:
            low_watermarks = admin.delete_records(offsets) if offsets else {}
        except AdminError as error:
            low_watermarks, errors = error.results, error.errors
    if args["json"]:
        print_json(
            [
                {
                    "topic": tp.topic,
                    "partition": tp.partition,
                    "lowWatermark": low_watermarks.get(tp),
                    "error": reason(errors[tp]) if tp in errors else None,
                }
                for tp in sorted(offsets)
            ]
        )
        return 1 if errors else 0
    print("Records delete operation completed:")
    for tp in sorted(offsets):
        result = f"error: {reason(errors[tp])}" if tp in errors else f"low_watermark: {low_watermarks[tp]}"
        print(f"partition: {tp}\t{result}")
    return 1 if errors else 0
