"""An agent for one edge server, over MQTT."""
