"""Installing an edge agent as a service of a machine: what is written where, and what is there."""
