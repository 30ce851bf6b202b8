"""A broker inside a test, and a pytest fixture."""

from __future__ import annotations
