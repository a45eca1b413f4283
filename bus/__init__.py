"""How it is carried: the Bus contract and its backends."""
