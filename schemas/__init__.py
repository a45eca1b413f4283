"""What is said: events, commands, topics and the codec. Imports nothing of ours."""
