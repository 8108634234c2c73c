"""Why a step was bad: replayed, traced and explained.

``replay`` runs the training step of a model once more on the same batch and
restores all state. ``trace`` watches every operation for the first NaN or Inf,
``find_cause`` tells the kind of cause and the samples, ``explain`` puts that
into words, and ``bundle`` keeps what a replay elsewhere needs. ``headroom``
warns before values leave the range of their dtype.
"""
