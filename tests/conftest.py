from __future__ import annotations

from hypothesis import settings

# A busy machine is no failure: time limits of examples say nothing about the code.
settings.register_profile("patient", deadline=None)
settings.load_profile("patient")
