"""The real engine goes on from any entry of a log, as it was or with a change."""
