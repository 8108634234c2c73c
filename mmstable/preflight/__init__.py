"""What would go wrong?  Looks at a config, and its data, before training."""

from mmstable.finding import Finding, Severity
from mmstable.preflight.skip_samples import SkipSamples

__all__ = ['Finding', 'Severity', 'SkipSamples']
