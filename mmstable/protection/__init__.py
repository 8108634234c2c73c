"""What does a config need, so that its run is protected?

Plain settings in, changes out; nothing here builds or trains anything.
"""
