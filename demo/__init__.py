"""A simulated day on the real services: what `tidegate demo` runs, paints and comes to."""
