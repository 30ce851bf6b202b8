"""Stands in for the `cython` module where a file that can be compiled runs as plain Python, without Cython."""

compiled = False
