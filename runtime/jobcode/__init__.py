"""The code of a job: archives that agents fetch, and unpack where its workers begin."""
