"""Connect: data between topics and other systems, configured and managed as Kafka Connect is, run
by Spark."""
