"""Executors that run real workers."""
