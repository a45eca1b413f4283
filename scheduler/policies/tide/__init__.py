"""`tide`: one market for all GPUs."""
