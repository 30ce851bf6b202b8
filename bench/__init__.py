"""Benchmarks of Kavka and Apache Kafka on the same machine: `python -m bench --help`."""
