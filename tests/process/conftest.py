"""A demo's log, for the tests of this folder that serve one."""

from tests.demo_log import _demo, log

__all__ = ["_demo", "log"]
