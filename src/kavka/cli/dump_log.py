"""`kavka dump-log` (`kafka-dump-log`): print the contents of log files.

It reads the files of Kavka and Kafka, even while a broker writes to them.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator

from kavka.cli.dump_files import Mismatches, base_offset_of, mapped
from kavka.cli.dump_indexes import dump_offset_index, dump_snapshot, dump_time_index, dump_transaction_index
from kavka.cli.dump_records import Decoder, make_decoder
from kavka.cli.options import Arguments, Command, Option, UsageError
from kavka.cli.tool import ToolError, run
from kavka.common.errors import KafkaError
from kavka.records.batch import Batch, Buffer, batches, legacy_key_value
from kavka.records.compression import codec_name, decompress
from kavka.records.control import control_type
from kavka.records.reader import batch_records
from kavka.records.record import Record

MAX_INT = (1 << 31) - 1
TIMESTAMP_TYPES = ("CreateTime", "LogAppendTime")
_CONTROL_TYPES = {
    0: "ABORT", 1: "COMMIT", 2: "LEADER_CHANGE", 3: "SNAPSHOT_HEADER", 4: "SNAPSHOT_FOOTER", 5: "KRAFT_VERSION",
    6: "KRAFT_VOTERS",
}  # fmt: skip

COMMAND = Command(
    "dump-log",
    "Print the contents of log files: segments (.log), their indexes (.index, .timeindex, .txnindex) and the "
    "producer state (.snapshot).",
    (
        Option("files", "The files, separated by commas.", "files", required=True, separator=",", completes="file"),
        Option("print-data-log", "Also print keys and values."),
        Option("deep-iteration", "Print every record, not only every batch."),
        Option("skip-record-metadata", "With --print-data-log: print only keys and values."),
        Option("max-bytes", "Maximum bytes to read of each segment.", "bytes", int, MAX_INT),
        Option("index-sanity-check", "Only check the index as a broker does at startup."),
        Option("verify-index-only", "Check an index against its segment without printing it."),
        Option("max-message-size", "Has no effect: batches of any size are read.", "bytes", int, 5 * 1024 * 1024),
        Option(
            "key-decoder-class",
            "Decoder of keys: StringDecoder, IntegerDecoder, LongDecoder or DefaultDecoder.",
            "class",
            default="StringDecoder",
            optional=True,
        ),
        Option("value-decoder-class", "Decoder of values.", "class", default="StringDecoder", optional=True),
        Option("offsets-decoder", "Decode the records of __consumer_offsets."),
        Option("transaction-log-decoder", "Decode the records of __transaction_state."),
        Option("cluster-metadata-decoder", "Not supported: there is no metadata topic.", hidden=True),
        Option("remote-log-metadata-decoder", "Not supported: there is no tiered storage.", hidden=True),
        Option("share-group-state-decoder", "Not supported: there are no share groups.", hidden=True),
    ),
    examples=("kavka dump-log --files kavka-data/orders-0/00000000000000000000.log --print-data-log",),
)


def main(argv: list[str]) -> int:
    return run(COMMAND, argv, dump)


def dump(args: Arguments) -> None:
    for name in ("cluster-metadata-decoder", "remote-log-metadata-decoder", "share-group-state-decoder"):
        if name in args:
            raise UsageError(f"--{name} is not supported")
    decoder = make_decoder(args)
    mismatches = Mismatches()
    for path in args["files"]:
        print(f"Dumping {path}")
        suffix = "." + os.path.basename(path).rpartition(".")[2]
        if suffix == ".log":
            _dump_log(path, args, decoder, mismatches)
        elif suffix == ".index":
            dump_offset_index(path, args, mismatches)
        elif suffix == ".timeindex":
            dump_time_index(path, args, mismatches)
        elif suffix == ".txnindex":
            dump_transaction_index(path)
        elif suffix == ".snapshot":
            dump_snapshot(path)
        else:
            print(f"Ignoring unknown file {path}", file=sys.stderr)
    sys.stdout.flush()
    mismatches.print()


def _dump_log(path: str, args: Arguments, decoder: Decoder | None, mismatches: Mismatches) -> None:
    print(f"Log starting offset: {base_offset_of(path)}")
    print_records = args["deep-iteration"] or decoder is not None
    write = sys.stdout.write
    last_offset = -1
    with mapped(path) as data:
        end = min(len(data), args["max-bytes"])
        valid_end = 0
        for batch in _valid_batches(data, end):
            write(batch_line(batch))
            if print_records:
                for record, message in _records(batch):
                    if last_offset >= 0 and record.offset != last_offset + 1:
                        gap = f"  {last_offset} is followed by {record.offset}"
                        mismatches.add("Non-consecutive offsets in ", path, gap)
                    last_offset = record.offset
                    write(record_line(batch, record, decoder, message, skip=args["skip-record-metadata"]))
            valid_end = batch.end
            # A batch must not keep the memory map open.
            batch.buf = b""
        if end > valid_end and args["max-bytes"] == MAX_INT:
            print(f"Found {end - valid_end} invalid bytes at the end of {os.path.basename(path)}")


def _valid_batches(data: Buffer, end: int) -> Iterator[Batch]:
    """Yield the batches before the first invalid batch, and report the invalid batch on standard
    error."""
    try:
        yield from batches(data, 0, end)
    except KafkaError as error:
        sys.stdout.flush()
        print(f"kavka dump-log: {error.message}", file=sys.stderr)


def _records(batch: Batch) -> Iterator[tuple[Record, Batch | None]]:
    """Yield each record. In formats 0 and 1, also yield its message, which has a checksum. Raise
    ToolError if the batch cannot be read."""
    try:
        records = batch_records(batch, verify_crc=False)
        if batch.magic == 2:
            yield from ((record, None) for record in records)
        elif not batch.codec:
            yield from ((record, batch) for record in records)
        else:
            _, compressed = legacy_key_value(batch.buf, batch)
            assert compressed is not None
            yield from zip(records, batches(decompress(batch.codec, compressed)), strict=True)
    except KafkaError as error:
        raise ToolError(f"cannot read the batch at offset {batch.base_offset}: {error.message}") from None


def batch_line(batch: Batch) -> str:
    if batch.magic == 2:
        horizon = batch.delete_horizon
        horizon_text = "OptionalLong.empty" if horizon is None else f"OptionalLong[{horizon}]"
        head = (
            f"baseOffset: {batch.base_offset} lastOffset: {batch.last_offset} count: {batch.count} "
            f"baseSequence: {batch.base_sequence} lastSequence: {batch.last_sequence} "
            f"producerId: {batch.producer_id} producerEpoch: {batch.producer_epoch} "
            f"partitionLeaderEpoch: {batch.leader_epoch} isTransactional: {_boolean(batch.is_transactional)} "
            f"isControl: {_boolean(batch.is_control)} deleteHorizonMs: {horizon_text}"
        )
    else:
        head = f"offset: {batch.last_offset}"
    timestamp_type = TIMESTAMP_TYPES[batch.timestamp_type] if batch.magic else "NoTimestampType"
    return (
        f"{head} position: {batch.start} {timestamp_type}: {batch.max_timestamp} size: {batch.size} "
        f"magic: {batch.magic} compresscodec: {codec_name(batch.codec)} crc: {batch.crc} "
        f"isvalid: {_boolean(batch.has_valid_crc())}\n"
    )


def record_line(batch: Batch, record: Record, decoder: Decoder | None, message: Batch | None, *, skip: bool) -> str:
    """Format a record. `skip` omits the metadata of the record."""
    parts: list[str] = []
    prefix = "| "
    if not skip:
        timestamp_type = TIMESTAMP_TYPES[batch.timestamp_type] if batch.magic else "NoTimestampType"
        parts.append(
            f"{prefix}offset: {record.offset} {timestamp_type}: {record.timestamp} keySize: {_size(record.key)} "
            f"valueSize: {_size(record.value)}"
        )
        prefix = " "
        if batch.magic == 2:
            sequence = -1
            if batch.base_sequence >= 0:
                sequence = (batch.base_sequence + record.offset - batch.base_offset) & MAX_INT
            names = ",".join(_text(name) for name, _ in record.headers)
            parts.append(f" sequence: {sequence} headerKeys: [{names}]")
        if message is not None:
            # Kafka prints this unmatched brace.
            parts.append(f" isValid: {_boolean(message.has_valid_crc())} crc: {message.crc}}}")
        if batch.is_control:
            parts.append(_control_text(record))
    if decoder is not None and not batch.is_control:
        key, payload = decoder(record)
        if key is not None:
            parts.append(f"{prefix}key: {key}")
        if payload is not None:
            parts.append(f" payload: {payload}")
    return "".join(parts) + "\n"


def _control_text(record: Record) -> str:
    type_id = control_type(record.key)
    if type_id in (0, 1) and record.value is not None and len(record.value) >= 6:
        epoch = int.from_bytes(record.value[2:6], "big", signed=True)
        return f" endTxnMarker: {_CONTROL_TYPES[type_id]} coordinatorEpoch: {epoch}"
    return f" controlType: {_CONTROL_TYPES.get(type_id, 'UNKNOWN')}({type_id})"


def _text(name: str) -> str:
    return name.encode("utf-8", "surrogateescape").decode(errors="replace")


def _size(data: bytes | None) -> int:
    return -1 if data is None else len(data)


def _boolean(value: bool) -> str:
    return "true" if value else "false"
