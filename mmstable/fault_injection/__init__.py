"""What is broken on purpose, when, and how?"""
