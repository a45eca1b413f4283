"""What gangs on a cluster's own scheduler have in common, whichever that is."""
