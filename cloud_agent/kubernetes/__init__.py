"""Gangs as Jobs of a Kubernetes cluster."""

from cloud_agent.kubernetes.executor import KubernetesExecutor
from cloud_agent.kubernetes.options import KubernetesOptions

__all__ = ["KubernetesExecutor", "KubernetesOptions"]
