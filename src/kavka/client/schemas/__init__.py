"""Schemas from a registry that speaks Confluent's REST API.

`registry.py` is the client of the registry, `framing.py` the bytes before a payload, `subjects.py`
the names of subjects. `avro.py`, `json_schema.py` and `protobuf.py` convert values, and
`serializers.py` connects them to the clients.
"""
