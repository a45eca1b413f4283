"""What was decided and why, in words and as plain data, for the terminal and whoever else asks."""
