"""Where the time of an iteration goes."""
