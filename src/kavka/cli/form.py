"""The form of the client's hot modules: compiled, or plain Python (see setup.py)."""

from __future__ import annotations

PLAIN_FORM = (
    "the client runs as plain Python, which is slower than its compiled form; to compile it, install Kavka from its "
    "source where a C compiler and Python's headers are present (in a checkout: make compile)"
)


def is_compiled() -> bool:
    """Whether both hot modules are compiled."""
    from kavka.client.consumer import _decode
    from kavka.client.producer import _append

    return _append.is_compiled() and _decode.is_compiled()
