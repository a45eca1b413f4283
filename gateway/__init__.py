"""The HTTP API of a log: every view of a cell, now and at any moment, for people's programs.

docs/architecture.md says which file a request passes. In short: `guard` lets it in, `routes` and
`routes_*` take it; reads go through `request_context` to `views` and `journal_queries`, requests of
people through `posting` to `outbox`, branches through `branches` to processes of their own.
"""
