"""What is the state of a run?"""
