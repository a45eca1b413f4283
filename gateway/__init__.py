"""The HTTP API of a log: every view of a cell, now and at any moment, for people's programs."""
