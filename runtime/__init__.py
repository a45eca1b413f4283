"""What both agents share: the pure agent core, executors, meters and the spool."""
