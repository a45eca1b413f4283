"""What was decided and why, in words and as plain data, for the terminal and whoever else asks.

Nothing is worked out here: policies and the core give reasons with their figures, and the journal
has them. `reading` reads a bus; `story` collects what the journal says of a job, `answer` puts it
beside the job's state, `documents` makes of both what `why` answers, and `wording` says it with the
sentences of `phrases`. `rows`, `overview` and `tide` are for lists and figures of a whole cell.
"""
