"""The common base of producer and consumer interceptors: creating, calling and closing them.

If an interceptor fails, the error is logged, and the next interceptor gets the unchanged value.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar

from kavka.client import classes
from kavka.common.config import ConfigError

logger = logging.getLogger(__name__)

T = TypeVar("T")


class InterceptorChain:
    """Owns the interceptors of a client. Each must have at least one of `methods`."""

    def __init__(
        self, values: Iterable[Any], configs: Mapping[str, Any], client_kind: str, methods: tuple[str, ...]
    ) -> None:
        self._all = [classes.make("interceptor.classes", value, {}, "an interceptor", configs) for value in values]
        for interceptor in self._all:
            if not any(hasattr(interceptor, name) for name in methods):
                raise ConfigError(
                    "interceptor.classes", f"{type(interceptor).__name__} is not a {client_kind} interceptor"
                )

    def __bool__(self) -> bool:
        return bool(self._all)

    def methods(self, name: str) -> list[Callable[..., Any]]:
        """Return the bound methods with this name, of all interceptors that have the method."""
        return [getattr(interceptor, name) for interceptor in self._all if hasattr(interceptor, name)]

    def close(self) -> None:
        call_each(self.methods("close"), "close")


def pass_through(
    functions: Iterable[Callable[[T], Any]], method: str, value_type: type[T], value: T, description: str
) -> T:
    """Pass a value through the functions in turn, and return the result. A function that returns
    None leaves the value unchanged."""
    for function in functions:
        try:
            changed_value = function(value)
        except Exception:
            logger.exception("An interceptor's %s failed", method)
            continue
        if isinstance(changed_value, value_type):
            value = changed_value
        elif changed_value is not None:
            logger.error(
                "An interceptor's %s returned a %s instead of %s", method, type(changed_value).__name__, description
            )
    return value


def call_each(functions: Iterable[Callable[..., Any]], method: str, *args: Any) -> None:
    for function in functions:
        try:
            function(*args)
        except Exception:
            logger.exception("An interceptor's %s failed", method)
