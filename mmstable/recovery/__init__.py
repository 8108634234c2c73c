"""How does a run go back to a good state?"""
