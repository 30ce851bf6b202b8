"""What interceptors of producers and consumers have in common: how they are made, called in turn, and closed.

What one raises goes to the log, and the next one gets what this one got.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar

from kavka.client import classes
from kavka.common.config import ConfigError

log = logging.getLogger(__name__)

T = TypeVar("T")


class InterceptorChain:
    """`methods` are those of which an interceptor must have one, to be one `of` such a client."""

    def __init__(self, values: Iterable[Any], configs: Mapping[str, Any], of: str, methods: tuple[str, ...]) -> None:
        self._all = [classes.make("interceptor.classes", value, {}, "an interceptor", configs) for value in values]
        for found in self._all:
            if not any(hasattr(found, name) for name in methods):
                raise ConfigError("interceptor.classes", f"a {type(found).__name__} is no {of} interceptor")

    def __bool__(self) -> bool:
        return bool(self._all)

    def having(self, method: str) -> list[Callable[..., Any]]:
        """That method of all who have it."""
        return [getattr(one, method) for one in self._all if hasattr(one, method)]

    def close(self) -> None:
        tell(self.having("close"), "close")


def pass_through(functions: Iterable[Callable[[T], Any]], method: str, kind: type[T], what: T, name: str) -> T:
    """What the functions make of it, one after the other; None leaves it as it is."""
    for function in functions:
        try:
            changed = function(what)
        except Exception:
            log.exception("An interceptor's %s failed", method)
            continue
        if isinstance(changed, kind):
            what = changed
        elif changed is not None:
            log.error("An interceptor's %s returned a %s in place of %s", method, type(changed).__name__, name)
    return what


def tell(functions: Iterable[Callable[..., Any]], method: str, *args: Any) -> None:
    for function in functions:
        try:
            function(*args)
        except Exception:
            log.exception("An interceptor's %s failed", method)
