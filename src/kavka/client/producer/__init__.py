"""The producer: `send` serializes a record, chooses its partition and appends it to the partition's
batch (`_append.py`, which can be compiled). On the event loop, the sender sends batches that are
full or older than `linger.ms`, and retries them until they have an outcome.
"""
