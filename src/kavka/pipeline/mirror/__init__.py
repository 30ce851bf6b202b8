"""Mirroring of one cluster into another, as MirrorMaker does it, on Spark: see docs/mirror.md."""
