"""Columns from Avro, JSON Schema and Protobuf, for the Spark source and Connect."""
