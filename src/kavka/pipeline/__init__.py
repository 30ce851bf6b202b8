"""The data pipeline on Spark: source and sink, and the layers that build on them."""
