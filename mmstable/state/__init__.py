"""What is the state of a run?  Captured, restored and resumed by one list."""
