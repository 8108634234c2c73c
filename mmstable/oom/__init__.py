"""The batch does not fit into memory: retry it another way."""
