"""Connect: moves data between topics and other systems. It is configured and managed like Kafka
Connect. Spark runs the connectors."""
