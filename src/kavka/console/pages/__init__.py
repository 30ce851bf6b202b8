"""The pages. Each module registers its pages and operations; the order here is that of the navigation."""

# ruff: noqa: I001
from kavka.console.pages import overview
from kavka.console.pages import audit

__all__ = ["audit", "overview"]
