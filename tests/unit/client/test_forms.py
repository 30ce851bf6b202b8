from __future__ import annotations

import os
from pathlib import Path

import pytest

from kavka.client.producer import _append
from tests.support import forms


@pytest.mark.parametrize("name", forms.modules())
def test_compiled_module_is_not_older_than_its_source(name: str) -> None:
    source = forms.ROOT / "src" / Path(*name.split("."))
    compiled = [p for p in source.parent.glob(f"{source.name}.*") if p.suffix in (".so", ".pyd")]
    newest = max(source.with_suffix(suffix).stat().st_mtime for suffix in (".py", ".pxd"))
    stale = [p.name for p in compiled if p.stat().st_mtime < newest]
    assert not stale, f"{stale} would be used instead of the edited source: run make compile"


def test_requested_form_is_used() -> None:
    form = os.environ.get("KAVKA_FORM")
    assert form is None or _append.is_compiled() == (form == forms.COMPILED)
