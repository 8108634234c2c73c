"""Keep an OpenMMLab training run alive and say what happened to it.

Importing this package registers its classes with mmengine.
"""

from __future__ import annotations

from mmengine.config.utils import MODULE2PACKAGE

from mmstable import hooks, loops, optim
from mmstable.checkpoint.schemes import guard_checkpoints
from mmstable.config_paths import config_path
from mmstable.events import Culprit, Fault, Outcome, StepReport
from mmstable.legacy import schedules
from mmstable.optim import SafeAmpOptimWrapper, SafeOptimWrapper
from mmstable.version import __version__

# For `_base_ = 'mmstable::...'`. mmengine looks for a distribution of this
# name first and trusts its metadata, which point to the wrong folder for an
# editable installation; a module that is no distribution is found by import.
MODULE2PACKAGE['mmstable'] = 'mmstable.version'

# A checkpoint is read as data. This is also what makes resuming work with
# torch 2.6 and newer, whose own guard refuses what mmengine saves.
guard_checkpoints()

__all__ = [
    'Culprit',
    'Fault',
    'Outcome',
    'SafeAmpOptimWrapper',
    'SafeOptimWrapper',
    'StepReport',
    '__version__',
    'config_path',
    'hooks',
    'loops',
    'optim',
    'schedules',
]
