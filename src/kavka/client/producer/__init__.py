"""The producer: `send` serialises, chooses a partition and appends to that partition's batch (`_append.py`, the part
that is compiled); the sender on the loop takes batches that are full or have waited long enough and sees them through.
"""
