"""The data pipeline on Spark: source and sink, and what is compiled to them."""
