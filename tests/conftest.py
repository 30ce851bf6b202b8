"""Before anything of Kavka is imported: `KAVKA_FORM=plain` or `compiled` decides on the form of the modules that have
both. Hypothesis does not judge how long an example takes: that says more about the machine. And Ctrl-C can be tested
though whoever started the tests ignores it, as a shell does for what runs in its background."""

from __future__ import annotations

import signal

from hypothesis import HealthCheck, settings

from tests.support import forms

forms.use_what_is_asked_for()

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

settings.register_profile("kavka", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("kavka")
