"""Kafka Streams on Spark Structured Streaming. The public names are in `kavka.streams`."""
