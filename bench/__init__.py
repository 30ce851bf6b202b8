"""Kavka beside Apache Kafka on the same machine: `python -m bench --help`."""
