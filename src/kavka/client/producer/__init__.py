"""The producer: `send` serialises a record, chooses its partition and appends it to that
partition's batch (`_append.py`, which is compiled). The sender on the loop sends batches that are
full or older than `linger.ms`, and retries them until they have an outcome.
"""
