"""The standard transformations and predicates of Kafka Connect, compiled to columns."""
