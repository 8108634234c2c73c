"""Is this machine fit to train?  Looks at it, and tries it out.

It must work where training does not: nothing here imports torch or mmengine
before the test that needs it.
"""
