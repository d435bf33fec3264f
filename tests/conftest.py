"""Nothing is timed: a noisy machine is no failure."""

from hypothesis import settings

settings.register_profile("hpclaunch", deadline=None)
settings.load_profile("hpclaunch")
