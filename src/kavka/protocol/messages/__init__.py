"""Kafka's messages, a module per API, generated from schemas/. This one imports none of them."""
