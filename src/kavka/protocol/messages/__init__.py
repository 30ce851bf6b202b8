"""Kafka's messages, one module per API, generated from schemas/."""
