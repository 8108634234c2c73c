# For a run that is lost to overflows again and again: a low start, slow
# growth, and a ceiling.
loss_scale = dict(
    init_scale=128.0,
    # Twice torch's 2000: time for the weights to settle before each trial.
    growth_interval=4000,
    # Two overflows in a row before backing off: one bad batch is no reason.
    hysteresis=2,
    # Head room for losses that are themselves in the tens.
    max_scale=4096.0,
)
