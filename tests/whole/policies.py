"""Policies of the simulated system, and the quotas that one of them keeps."""

#: What operators configure: all but the last lend, and give back what others have lent.
RATIONING = "tide:quotas.t0=2..:quotas.t1=..4"
QUOTAS = {"t1": 4}
POLICIES = ("tide", RATIONING, "aryl", "deepboot", "elasticflow")
#: What they choose by a request: also what knows no lender, and what there is not.
CHOSEN = (*POLICIES, "fifo", "srtf", "tide:quotas.t1=..6", "no-such-policy")
