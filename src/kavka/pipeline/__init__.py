"""Data pipelines on Spark: source and sink, Kafka Streams, mirroring and Connect."""
