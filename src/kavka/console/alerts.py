"""Alerts: rules on what a sample shows, those that are raised, and who is told."""

from __future__ import annotations

from kavka.console.cluster import ClusterHandle


async def load_rules(cluster: ClusterHandle) -> None:
    """Before the first sample."""


async def judge(cluster: ClusterHandle) -> None:
    """After every sample."""
