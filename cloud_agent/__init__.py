"""An agent for a cluster, over Kafka."""
