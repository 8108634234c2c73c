"""One module for each sub-command; see :class:`mmstable.cli.command.Command`.

A new file here is a new command.
"""
