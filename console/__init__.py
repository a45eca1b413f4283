"""The operator's side: the `tidegate` command, how its verbs read logs, and what they draw."""
