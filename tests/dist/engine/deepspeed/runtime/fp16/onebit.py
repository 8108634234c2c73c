"""A stand-in."""

from torch.optim import AdamW


class OnebitAdam(AdamW):
    pass


class OnebitLamb(AdamW):
    pass


class ZeroOneAdam(AdamW):
    pass
