"""Set-up of all tests.

`KAVKA_FORM=plain` or `compiled` selects the form of the modules that have both, before Kavka is
imported. Hypothesis does not check the time of an example, which depends on the machine. SIGINT is
restored, since a shell ignores it in background jobs and some tests send it. Tests with the marker
`matrix` run only with `-m matrix` (`make test-matrix`).
"""

from __future__ import annotations

import signal

import pytest
from hypothesis import HealthCheck, settings

from tests.support import forms

forms.use_configured_form()

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

settings.register_profile("kavka", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("kavka")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if "matrix" in config.option.markexpr:
        return
    matrix = [item for item in items if item.get_closest_marker("matrix")]
    if matrix:
        config.hook.pytest_deselected(items=matrix)
        items[:] = [item for item in items if item not in set(matrix)]
