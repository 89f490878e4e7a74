"""Settings of every test."""

from hypothesis import settings

# No test judges by time: two busy cores make any deadline a matter of luck.
settings.register_profile("loadmaster", deadline=None)
settings.load_profile("loadmaster")
