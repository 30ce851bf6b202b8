"""Set-up of all tests.

`KAVKA_FORM=plain` or `compiled` selects the form of the modules that have both, before Kavka is
imported. Hypothesis does not check the time of an example, which depends on the machine. SIGINT is
restored, since a shell ignores it in background jobs and some tests send it.
"""

from __future__ import annotations

import signal

from hypothesis import HealthCheck, settings

from tests.support import forms

forms.use_configured_form()

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

settings.register_profile("kavka", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("kavka")
