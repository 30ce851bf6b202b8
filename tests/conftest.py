"""Before anything of Kavka is imported: `KAVKA_FORM=plain` or `compiled` decides on the form of the modules that have
both. Hypothesis does not judge how long an example takes: that says more about the machine."""

from __future__ import annotations

from hypothesis import HealthCheck, settings

from tests.support import forms

forms.use_what_is_asked_for()

settings.register_profile("kavka", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("kavka")
