"""The code of a job: an archive that an agent fetches, and unpacks where the workers start.

`fetching` says from where it may come, `unpacking` is the process that opens it, and `rules` says
what it may hold.
"""
