"""Fuzz targets: one per decoder that reads bytes from clients, brokers, disks, ZooKeeper or topics.

    python -m tests.fuzz                              every target, a few thousand inputs each
    python -m tests.fuzz batches --inputs 100000      one target
    make fuzz ARGS="--seconds 600"                    every target for that long, random seeds
    python -m tests.fuzz batches --replay FILE        one input again, for a debugger

A target is a function of bytes. It must return within its limits of CPU time and memory; an
exception that the decoder does not document is a finding, and so is a result that contradicts
itself (a message that cannot be encoded again, more decompressed bytes than the limit). Inputs are
mutations of valid ones: golden frames and batches of Apache Kafka, Kavka's files, and `corpus/`,
which holds one file per past finding. To keep a finding fixed, copy the file that
the run names into `corpus/<target>/`.
"""
