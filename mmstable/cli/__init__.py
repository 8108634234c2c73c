"""The command line: ``mmstable train``, ... and the doors in ``tools/``."""
