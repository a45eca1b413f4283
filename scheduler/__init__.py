"""What is decided: a pure core, pure policies and a thin async shell.

- `core` decides; `policies` plan who has which GPUs; `estimator` learns how fast jobs are.
- `service` is the shell: `intake` reads records; `speakers`, `request_intake` and `node_admission`
  refuse what is not its sender's to say; `batch` has each record decided, `cycle_runner` runs
  cycles, `outgoing` writes commands.
- `journal`, `snapshots` and `dedupe` are what a restart needs; `replay` and `audit` prove a log.
"""
