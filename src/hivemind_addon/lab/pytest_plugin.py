"""The pytest plug-in under the name that users pass to `-p`: pytest finds it with and without an installation."""

from hivemind_addon.sim.pytest_plugin import *  # noqa: F403 - hooks and fixtures
