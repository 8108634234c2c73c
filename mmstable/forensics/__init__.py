"""Why did it happen?  A bad step done again, and looked at closely.

``replay`` runs the training step of a model once more on the same batch,
``traceless`` sees that nothing of that is left behind, and ``birth_mode``
watches every operation: where does a NaN or Inf come out although none went
in?  ``chain`` tells which of these births reached the loss or the gradients,
``samples`` whose data it was, ``verdict`` what kind of cause that is.
``investigate`` puts it all together; ``bundle`` keeps what is needed to do
it again elsewhere.
"""
