"""`tidegate doctor`: what is wrong with a machine and its surroundings, and what to do."""
