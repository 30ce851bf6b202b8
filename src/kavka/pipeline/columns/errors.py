"""The exception of this package."""

from __future__ import annotations


class ColumnError(Exception):
    """A schema without a column type, a column without a schema, or types that cannot be merged."""
