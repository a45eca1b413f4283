"""Checkpoints in a store that any fsspec URL names: verified, resumable, never half taken."""
