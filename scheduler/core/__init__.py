"""The pure core: what is decided on each stimulus, and the state that follows from it.

docs/architecture.md has a table of its files. To follow a decision, begin at `engine`: `observe`
says what a report means, `requests` what a person asks for, `due` what time alone brings;
`reconcile` turns a plan into claims, and `carry_out` claims into commands.
"""
