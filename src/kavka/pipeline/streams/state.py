"""Writing many entries to Spark's map state at once.

PySpark's `updateValue` sends one entry and waits for the answer, which takes a tenth of a
millisecond or more. The other side reads one request after the other from a socket and answers
each: so many are sent before the first answer is read. Only so many that the answers fit into the
socket's buffers, or both sides would wait for each other.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from itertools import islice
from typing import Any

from pyspark.errors import PySparkRuntimeError

# An answer has about ten bytes.
_AT_ONCE = 1000
_MESSAGE_VERSION = 0
_HEAD = struct.Struct(">ii")


def put_all(state: Any, entries: Iterable[tuple[bytes, bytes | None]]) -> None:
    """Update the values of a map state with one binary column each as key and value; None takes an
    entry away."""
    import pyspark.sql.streaming.proto.StateMessage_pb2 as messages

    client = state._mapStateClient
    api, name = client._stateful_processor_api_client, state._stateName
    file, row = api.sockfile, api._serialize_to_bytes
    waiting = iter(entries)
    while some := list(islice(waiting, _AT_ONCE)):
        for key, value in some:
            at = row(client.user_key_schema, (key,))
            if value is None:
                call = messages.MapStateCall(stateName=name, removeKey=messages.RemoveKey(userKey=at))
            else:
                put = messages.UpdateValue(userKey=at, value=row(client.value_schema, (value,)))
                call = messages.MapStateCall(stateName=name, updateValue=put)
            request = messages.StateRequest(stateVariableRequest=messages.StateVariableRequest(mapStateCall=call))
            data = request.SerializeToString()
            file.write(_HEAD.pack(_MESSAGE_VERSION, len(data)) + data)
        file.flush()
        answers = [api._receive_proto_message() for _ in some]
        for status, why, _ in answers:
            if status:
                raise PySparkRuntimeError(f"Spark did not keep the state of {name}: {why}")
