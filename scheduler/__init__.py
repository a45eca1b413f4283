"""What is decided: a pure core, pure policies and a thin async shell."""
