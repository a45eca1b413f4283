"""Long-running roles: configuration, life cycle, health, metrics and logs around the shells."""
