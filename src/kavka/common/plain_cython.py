"""Stands in for the `cython` module where a file that can be compiled runs as plain Python and Cython is not installed."""

compiled = False
