"""Can these batches make a single step?  Asked before the first iteration."""

from __future__ import annotations

from typing import Any

from mmengine.optim import OptimWrapperDict
from mmengine.runner import Runner
from torch.utils.data import DataLoader

from mmstable import runner_view
from mmstable.errors import ConfigError
from mmstable.messages import _
from mmstable.state.data_position import DataSignature, is_endless, sampler_of


def check_batch_size(
    dataloader: Any, setting: str = 'train_dataloader'
) -> None:
    """Refuse a size that no batch can have.

    Args:
        dataloader (DataLoader or dict): Only a dict can be wrong.
        setting (str): What the config calls it. Defaults to
            'train_dataloader'.
    """
    size = (
        dataloader.get('batch_size') if isinstance(dataloader, dict) else None
    )
    if size is None or (type(size) is int and size > 0):
        return
    hint = ''
    if size == 0:
        hint = (
            ' A division of whole numbers gives 0 if the second is larger: '
            '`max_img_per_gpu // sequence_length` with 4 // 8 = 0, for '
            'example.'
        )
    elif isinstance(size, float):
        hint = ' Whole numbers are divided by `//`, not by `/`.'
    raise ConfigError(
        f'{setting}.batch_size must be an int of at least 1, got {size!r}.'
        f'{hint}'
    )


def check_data(dataloader: DataLoader) -> None:
    """Refuse training data that does not fill one batch."""
    facts = DataSignature.of(dataloader)
    if facts.dataset_length == 0:
        raise ConfigError(
            'train_dataloader: the data set is empty (0 samples). Is its path '
            'right, and does a filter remove everything?'
        )
    if is_endless(dataloader) or _length(dataloader) != 0:
        return
    samples = _length(sampler_of(dataloader))
    if not samples:
        raise ConfigError(
            f'train_dataloader: {facts.sampler} takes none of the '
            f'{facts.dataset_length} samples.'
        )
    raise ConfigError(
        'train_dataloader: an epoch has 0 iterations. '
        f'{facts.dataset_length} samples / {_some(facts.world_size, "rank")} '
        f'= {samples} for each, {samples} // batch_size {facts.batch_size} = '
        '0 full batches, and drop_last=True leaves out others. Use '
        f'batch_size <= {samples}, drop_last=False, or more data.'
    )


def check_counts(setting: str, counts: Any, iterations: int) -> None:
    """Refuse steps of one of several wrappers that never come.

    mmengine does not tell these how long the run is, so that they make no
    last, shorter step.

    Args:
        setting (str): What the config calls the wrapper.
        counts (int): Its ``accumulative_counts``.
        iterations (int): Iterations of the whole run.
    """
    if is_longer(counts, iterations):
        raise ConfigError(
            f'{setting}.accumulative_counts={counts}: a step takes {counts} '
            f'iterations, but the whole run has {iterations}: '
            f'{iterations} // {counts} = 0 full steps. Use '
            f'accumulative_counts <= {iterations}, or train longer '
            '(train_cfg).'
        )


def is_longer(counts: Any, iterations: int) -> bool:
    """Whether a step takes more iterations than there are."""
    return type(counts) is int and counts > iterations > 0


def check_steps(runner: Runner) -> None:
    """Refuse a run without a step; say how steps are put together."""
    several = isinstance(runner.optim_wrapper, OptimWrapperDict)
    for name, wrapper in runner_view.wrappers(runner).items():
        counts = runner_view.accumulative_counts(wrapper)
        setting = f'optim_wrapper.{name}' if several else 'optim_wrapper'
        if several:
            check_counts(setting, counts, runner.max_iters)
        if is_longer(counts, runner.max_iters):
            runner.logger.warning(
                _(
                    '{setting}.accumulative_counts={counts}: a step takes '
                    '{counts} iterations, but the whole run has '
                    '{iterations}, so that it makes one step, at its end. If '
                    'that is not what you want: accumulative_counts <= '
                    '{iterations}, or a longer run (train_cfg)',
                    setting=setting,
                    counts=counts,
                    iterations=runner.max_iters,
                )
            )
        elif counts > 1:
            facts = DataSignature.of(runner.train_dataloader)
            # A single wrapper makes a last, shorter step.
            rest = 0 if several else counts - 1
            runner.logger.info(
                _(
                    '{setting}: 1 step = {counts} iterations '
                    '(accumulative_counts) x {ranks:rank|ranks} x batch_size '
                    '{batch_size} = {samples} samples; {iterations} '
                    'iterations = {steps:step|steps}.',
                    setting=setting,
                    counts=counts,
                    ranks=facts.world_size,
                    batch_size=facts.batch_size,
                    samples=counts * facts.world_size * facts.batch_size,
                    iterations=runner.max_iters,
                    steps=(runner.max_iters + rest) // counts,
                )
            )


def _some(count: int, noun: str) -> str:
    return f'{count} {noun}' if count == 1 else f'{count} {noun}s'


def _length(sized: Any) -> int | None:
    try:
        return len(sized)
    except TypeError:
        return None
