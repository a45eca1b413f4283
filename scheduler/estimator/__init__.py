"""What is learned of jobs from what agents report of them; the shell beside the pure core.

`steps` keeps the steps that were timed and what follows for shapes that were not seen: the service
and the simulator learn through it. `kin` keeps what jobs that are alike showed, `curves` says what
that means for one of them, and `estimator` does so for all jobs of a cell, a little at a time.
`lengths` says how long a job will be that declared no total, and `totals` for all of a cell. What
is learned reaches the engine as a stimulus, and so the journal: nothing is ever fitted twice.
"""
