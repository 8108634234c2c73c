"""A stand-in."""

from torch.optim import AdamW


class DeepSpeedCPUAdam(AdamW):
    pass


class FusedAdam(AdamW):
    pass
