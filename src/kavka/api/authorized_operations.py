"""The operations that a client may perform on a resource, as a bit field: bit N is AclOperation N.

Without an authorizer, all operations that apply to the resource type are allowed.
"""

from __future__ import annotations

from enum import IntEnum


class Operation(IntEnum):
    READ = 3
    WRITE = 4
    CREATE = 5
    DELETE = 6
    ALTER = 7
    DESCRIBE = 8
    CLUSTER_ACTION = 9
    DESCRIBE_CONFIGS = 10
    ALTER_CONFIGS = 11
    IDEMPOTENT_WRITE = 12


def _bits(*operations: Operation) -> int:
    return sum(1 << operation for operation in operations)


_O = Operation
CLUSTER_OPERATIONS = _bits(
    _O.CREATE, _O.ALTER, _O.DESCRIBE, _O.CLUSTER_ACTION, _O.DESCRIBE_CONFIGS, _O.ALTER_CONFIGS, _O.IDEMPOTENT_WRITE
)
TOPIC_OPERATIONS = _bits(
    _O.READ, _O.WRITE, _O.CREATE, _O.DELETE, _O.ALTER, _O.DESCRIBE, _O.DESCRIBE_CONFIGS, _O.ALTER_CONFIGS
)
NOT_ASKED = -(2**31)
