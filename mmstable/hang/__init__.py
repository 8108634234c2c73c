"""Find out where a run hangs."""
