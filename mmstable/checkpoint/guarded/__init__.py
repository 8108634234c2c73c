"""How is a checkpoint read without running anything that is in it?

A checkpoint is a pickle with tensors beside it. Reading it takes three steps,
each of which knows only plain data:

1. ``pickle_machine`` turns the opcodes into built-in types and inert *nodes*.
   Nothing is imported and nothing is called but the functions in
   ``known_names``, which check every argument.
2. ``zip_archive`` or ``legacy_file`` fill the storages from one open file,
   and can digest the same bytes on the way.
3. ``build`` makes real tensors, arrays and log histories of the nodes, within
   limits set by the size of the file.

None of this depends on torch's own allow-list or on the version of torch.
"""

from mmstable.checkpoint.guarded.errors import Malformed, Refused, Truncated
from mmstable.checkpoint.guarded.open_file import OpenFile
from mmstable.checkpoint.guarded.read import Content, read

__all__ = ['Content', 'Malformed', 'OpenFile', 'Refused', 'Truncated', 'read']
