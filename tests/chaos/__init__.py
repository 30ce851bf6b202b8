"""Inject faults into a cluster under load, and check every acknowledged record."""
