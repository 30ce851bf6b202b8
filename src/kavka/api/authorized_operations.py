"""The operations that a client may perform on a resource, as a bit field. Bit N is AclOperation N.

Without an authorizer, all operations that apply to the resource type are allowed.
"""

from __future__ import annotations

READ, WRITE, CREATE, DELETE, ALTER, DESCRIBE = (1 << bit for bit in range(3, 9))
CLUSTER_ACTION, DESCRIBE_CONFIGS, ALTER_CONFIGS, IDEMPOTENT_WRITE = (1 << bit for bit in range(9, 13))

CLUSTER_OPERATIONS = CREATE | ALTER | DESCRIBE | CLUSTER_ACTION | DESCRIBE_CONFIGS | ALTER_CONFIGS | IDEMPOTENT_WRITE
GROUP_OPERATIONS = READ | DELETE | DESCRIBE
TOPIC_OPERATIONS = READ | WRITE | CREATE | DELETE | ALTER | DESCRIBE | DESCRIBE_CONFIGS | ALTER_CONFIGS
