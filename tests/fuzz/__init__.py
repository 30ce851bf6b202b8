"""Fuzz targets: one per decoder that reads bytes from clients, brokers, disks, ZooKeeper or topics.

    python -m tests.fuzz                              every target, a few thousand inputs each
    python -m tests.fuzz batches --inputs 100000      one target
    make fuzz ARGS="--seconds 600"                    every target, 600 s in total, random seeds
    python -m tests.fuzz batches --replay FILE        one input again, for a debugger

A target is a function of bytes. It must return within its limits of CPU time and memory. An
exception that the decoder does not document is a finding. An inconsistent result is also a finding,
for example a message that cannot be encoded again, or more decompressed bytes than the limit.
Inputs are mutations of valid inputs: golden frames and batches of Apache Kafka, Kavka's files, and
`corpus/`, which has one file per past finding. To add a regression test for a finding, copy the
file that the run prints to `corpus/<target>/`.
"""
