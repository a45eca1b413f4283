"""The operator's side: the tidegate command, web page, replay, why and timelines."""
