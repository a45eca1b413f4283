"""Real meters: GPUs by NVML, a DCGM exporter or the host's CPU; inference load by scraping.

Threads do the waiting; what the agent's loop calls returns at once with what is known. What is
not known is None or widens a margin, and never looks like zero.
"""
