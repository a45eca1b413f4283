"""Checkpoints in a store at any fsspec URL: verified, resumable, whole or not there at all.

`store` has the `CheckpointStore` that others use. A checkpoint is verified three times: `upload`
checks each part once the store has it, `catalogue` lists only checkpoints whose `manifest` is valid
and whose parts are all there, and `download` checks each part that it fetches against its digest.
"""
