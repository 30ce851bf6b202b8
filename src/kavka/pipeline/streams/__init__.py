"""Kafka Streams' way of saying it, on Spark's way of running it. The public names are in
`kavka.streams`."""
