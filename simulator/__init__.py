"""Virtual time: workloads, physics, faults, checkers and experiments."""
