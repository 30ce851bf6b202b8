"""Loads a JSON Web Key Set from a file or a URL. Blocks: call it in a worker thread."""

from __future__ import annotations

import json
import urllib.request
from http.client import HTTPException
from typing import Any
from urllib.parse import urlsplit

MAX_KEY_SET_BYTES = 1024 * 1024
DEFAULT_TIMEOUT_S = 10.0
_SCHEMES = ("file", "http", "https")


class KeySetError(Exception):
    """The key set cannot be loaded. `str()` is one line."""


def load_key_set(url: str, timeout_s: float = DEFAULT_TIMEOUT_S) -> Any:
    """Return the joserfc KeySet at `url` (file, http or https). Raises KeySetError."""
    from joserfc.errors import JoseError
    from joserfc.jwk import KeySet

    if urlsplit(url).scheme not in _SCHEMES:
        raise KeySetError(f"{url} is not a URL of the schemes {', '.join(_SCHEMES)}")
    try:
        with urllib.request.urlopen(url, timeout=timeout_s) as response:
            raw = response.read(MAX_KEY_SET_BYTES + 1)
    except (OSError, ValueError, HTTPException) as error:
        raise KeySetError(f"cannot read the JSON Web Key Set of {url}: {error}") from None
    if len(raw) > MAX_KEY_SET_BYTES:
        raise KeySetError(f"the JSON Web Key Set of {url} is larger than {MAX_KEY_SET_BYTES} bytes")
    try:
        return KeySet.import_key_set(json.loads(raw))
    except (JoseError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise KeySetError(f"{url} is not a JSON Web Key Set: {error}") from None
