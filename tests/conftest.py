from __future__ import annotations

from hypothesis import HealthCheck, settings

# A busy machine is no failure: how long an example or its making takes says nothing about the code.
settings.register_profile("patient", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("patient")
