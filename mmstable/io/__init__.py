"""Files, locks, processes and bounded JSON."""
