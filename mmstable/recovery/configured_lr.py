"""Which learning rate does the config ask for?"""

from __future__ import annotations

from typing import NamedTuple

from mmengine.runner import Runner

from mmstable.settings import is_number


class ConfiguredRate(NamedTuple):
    """A learning rate, and where the config has it.

    Args:
        path (str): E.g. 'optim_wrapper.optimizer.lr'.
        lr (float): What a schedule starts from.
    """

    path: str
    lr: float

    @property
    def half(self) -> str:
        """Half of it, as it is written in a config."""
        return f'{self.lr / 2:g}'

    @property
    def halving_options(self) -> str:
        """What halves it if it is added to the command that resumes."""
        return f'--override-lr-schedule --cfg-options {self.path}={self.half}'


def configured_lr(runner: Runner) -> ConfiguredRate | None:
    """The learning rate in the config of a run; of several, the first.

    The one that an optimizer has at some moment is of no use to somebody who
    wants to change it: that is what the schedule has made of it.
    """
    wrapper = runner.cfg.get('optim_wrapper') or {}
    candidates = {'optim_wrapper': wrapper}
    candidates.update(
        (f'optim_wrapper.{name}', value) for name, value in wrapper.items()
    )
    for path, one in candidates.items():
        optimizer = one.get('optimizer') if isinstance(one, dict) else None
        lr = optimizer.get('lr') if isinstance(optimizer, dict) else None
        if lr is not None and is_number(lr):
            return ConfiguredRate(f'{path}.optimizer.lr', float(lr))
    return None
