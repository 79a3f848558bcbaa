"""Pure functions on text and on Arrow batches of it."""
