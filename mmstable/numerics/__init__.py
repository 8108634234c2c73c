"""Is this step healthy?  Tensors in, verdict out; no runner, no config."""
