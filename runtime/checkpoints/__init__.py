"""Checkpoints in a store at any fsspec URL: verified, resumable, whole or not there at all."""
