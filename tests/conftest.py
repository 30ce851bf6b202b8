"""Before anything of Kavka is imported: `KAVKA_FORM=plain` or `compiled` decides on the form of the modules that have
both."""

from __future__ import annotations

from tests.support import forms

forms.use_what_is_asked_for()
