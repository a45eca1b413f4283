"""How it is carried: the Bus contract and its backends.

- `contract` is the interface; `open` opens the backend that an address names.
- `sqlite` and `kafka` are whole backends; `mqtt` is an edge agent's end of one.
- `bridge` carries between MQTT and Kafka: `bridge_check` accepts or refuses what comes from the
  edge, `bridge_up` takes it to Kafka, and `bridge_down` takes commands to agents.
- `letters` writes dead letters; `signing` signs and checks; `logfile` reads logs that are files.
"""
