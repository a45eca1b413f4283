"""The real engine goes on from any entry of a log, as it was or with a change.

- `origin`: what a log says of the moment, and of what came after it; `change`: what a branch does
  otherwise; `requests` and `added`: requests of operators, and jobs, that it adds.
- `run`: one branch; `control`: a branch beside its control; `parallel`: several runs at once, each
  with its own `draws` of what nobody has measured.
- `field`: the agents and owners of a branch; `recorded_gangs`: its jobs; `places`: its nodes.
- `deeds`: what an engine did, and the first that differs; `preview`, `forecast`, `document`: what
  people are shown; `save`: a branch as a log.
"""
