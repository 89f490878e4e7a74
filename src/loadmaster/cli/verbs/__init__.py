"""One file per verb, found by its name."""
