"""Gangs as Jobs of a Kubernetes cluster."""
