"""Faults against a cluster under load, and a checker that knows every acknowledged record."""
