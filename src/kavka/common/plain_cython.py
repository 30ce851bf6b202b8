"""Stands in for the `cython` module when a compilable module runs as plain Python."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

compiled = False


def cclass(decorated: T) -> T:
    return decorated


no_gc = cclass


def freelist(size: int) -> Callable[[T], T]:
    return cclass
