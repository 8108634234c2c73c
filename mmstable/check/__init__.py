"""Find mistakes in a config, and in its data, before training."""

from mmstable.check.dataset import SkipSamples

__all__ = ['SkipSamples']
