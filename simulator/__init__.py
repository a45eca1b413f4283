"""Virtual time: the real engine over workloads and fleets that are made up, or recorded.

- `driver`: the one loop. What it drives is a *field*: `ideal` agents, who run `gangs` as a
  `physics` says; real agent `cores`; or, of a recorded state, that of `branch`.
- `run`: one policy on one world; `compare`: several on the same; `account`, `metrics` and
  `outcome`: what came of it.
- `scenario`: the world of a demo; `workload`, `generate` and `trace_formats`: jobs; `fleet`,
  `pools`, `neighbours` and `tides`: nodes, and what their owners need.
"""
