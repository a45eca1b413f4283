"""The pure core: state, transitions, engine, ledger of loans, reconciler, explanations."""
