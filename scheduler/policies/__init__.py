"""The pure policies: numpy in, a plan with its reasons out.

A policy composes parts, each a pure module that knows nothing of the others:

- `gang`: which waiting jobs start, and who holds back for whom (order, backfill, preemption);
- `elastic`: how large each is; `share`: how large it must be for its deadline;
- `placement`: on which nodes; `capacity`: what is free while a plan is tried;
- `forecast`, `loans`: what owners lend and take back; `victims`: which nodes that empties;
- `offload`: who goes to the edge; `moves`: who changes pools because that pays.

`lending` and `deadlines` apply the parts to a `draft`, the plan being made; `waits` explains who is
left out. That is `tide`, the default; where one training pool is all there is, it leaves the plan
to `flow` or `timely`. The other policies have a module each and share `fixed`, `contest` and
`allot`. `registry` finds all of them by name, `catalogue` has a line on each.
"""
