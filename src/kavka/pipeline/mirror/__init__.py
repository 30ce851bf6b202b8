"""Mirrors one cluster to another on Spark, compatible with MirrorMaker (docs/mirror.md)."""
