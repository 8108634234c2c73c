"""How is a checkpoint read without running anything that is in it?

A checkpoint is a pickle with the storages of its tensors beside it.

1. ``formats`` opens either format of torch, reads the storages in one pass
   over one open file, and can digest the same bytes on the way.
2. ``unpickler`` executes the pickle, within limits set by the size of the
   file. Nothing is imported, and nothing is called but ...
3. ``rebuild``, whose functions check every argument and make tensors, arrays
   and log histories at once.

None of this depends on torch's own allow-list or on the version of torch.
"""
