"""``mmstable estimate``: tell what memory a config takes."""

from __future__ import annotations

import argparse
import copy
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import mmstable.cli.command as cli
from mmstable.messages import N_, _, parse_size, readable

if TYPE_CHECKING:
    from mmengine.config import Config
    from torch import nn
    from torch.optim import Optimizer

    from mmstable.memory.estimate import Data, Phase, Setup

# Training or validation takes more than there is.
EXIT_DOES_NOT_FIT = 11
# No device has less: without a unit, another one than bytes is meant.
_LEAST_BYTES = 1 << 20
_PHASES = (N_('training'), N_('validation'))
_PARTS = {
    'weights': N_('weights and buffers'),
    'gradients': N_('gradients, once all are there'),
    'optimizer': N_('optimizer state'),
    'batch': N_('the batch'),
    'activations': N_('activations, temporaries'),
}
# Samples that a batch is made of.
_SAMPLES = 4
_RECOMPUTING_HOOK = 'SafeActivationCheckpointHook'
_NO_DATA = N_('the config has no `train_dataloader` with samples.')


class Figures(NamedTuple):
    """All that was found out about a config.

    Args:
        limit (int, optional): Memory of the device, in bytes.
        accumulation (int): Batches that make one step.
        phases (list[Phase]): Training, and validation if there is one.
        presets (dict[str, Phase]): What training takes with presets.
        data (dict[str, Data]): Data by the split: 'train', and perhaps
            'val'.
    """

    limit: int | None
    accumulation: int
    phases: list[Phase]
    presets: dict[str, Phase]
    data: dict[str, Data]

    @property
    def too_large(self) -> list[Phase]:
        """What takes more than there is."""
        if self.limit is None:
            return []
        return [one for one in self.phases if one.peak.total > self.limit]


def estimate(args: argparse.Namespace) -> int:
    """Tell what a config takes, and return the exit code."""
    import torch

    from mmstable.cli.config import open_config
    from mmstable.cli.mistakes import explained
    from mmstable.memory.estimate import Estimator, can_measure

    if not can_measure():
        raise cli.usage_error(
            'torch {version} cannot count bytes of tensors '
            '(torch.distributed._tools.mem_tracker is missing); a torch from '
            '2.5 on can. It may be another one than that of the training.',
            version=torch.__version__,
        )
    cli.check_folder_of(args.json)
    cfg = open_config(args.config, args.cfg_options)
    wrapper = cfg.get('optim_wrapper')
    if not isinstance(wrapper, Mapping) or 'optimizer' not in wrapper:
        raise cli.usage_error(
            'the config has no `optim_wrapper` with one `optimizer`; '
            'several of them are not estimated.'
        )
    data = _data_of(cfg, args.batch_size)
    if 'train' not in data:
        raise cli.usage_error(_NO_DATA)
    setup, limit = _setup_of(cfg), args.device_memory
    estimator = Estimator(
        lambda: _build_model(cfg),
        lambda model: _build_optimizer(cfg, model),
        limit,
    )
    failed = N_('a step of the model cannot be run: {error}')
    with explained(failed), cli.working(_('measuring what the config takes')):
        phases = [estimator.training(data['train'], setup)]
        if 'val' in data:
            phases.append(estimator.validation(data['val'], setup))
        presets = estimator.presets(data['train'], setup)
    figures = Figures(limit, setup.accumulation, phases, presets, data)
    cli.show(
        _parts(figures),
        *_remarks(figures),
        _presets(figures),
        _best_preset(figures),
    )
    if args.json is not None:
        cli.write_json(args.json, _as_json(figures))
    return EXIT_DOES_NOT_FIT if figures.too_large else 0


def _parts(figures: Figures) -> Any:
    phases = figures.phases
    columns = [
        [
            str(one.batch_size),
            *(readable(getattr(one.peak, part)) for part in _PARTS),
            readable(one.peak.total),
            readable(one.line.each),
            _largest(one),
        ]
        for one in phases
    ]
    names = [_('batch size'), *map(_, _PARTS.values()), _('peak')]
    names += [_('per sample'), _('largest batch that fits')]
    rows: list[Sequence[str] | None] = list(zip(names, *columns))
    if figures.limit is None:
        rows.pop()
    # A line above the peak.
    rows.insert(1 + len(_PARTS), None)
    header = ['', *map(_, _PHASES[: len(phases)])]
    return cli.table(rows, header, _('bytes of tensors at the peak'), right=1)


def _largest(phase: Phase) -> str:
    from mmstable.memory.estimate import LARGEST

    if phase.largest is not None and phase.largest >= LARGEST:
        return _('at least {count}', count=LARGEST)
    return str(phase.largest)


def _presets(figures: Figures) -> Any:
    from mmstable.memory.estimate import PRESETS

    header = [_('preset'), _('batch x accumulation'), _('peak')]
    if figures.limit is not None:
        header += [_('fits'), _('largest batch that fits')]
    rows = []
    for preset in PRESETS:
        phase = figures.presets[preset.name]
        counts = max(figures.accumulation, preset.accumulation)
        size = phase.peak.total
        row = [preset.name, f'{phase.batch_size} x {counts}', readable(size)]
        if figures.limit is not None:
            fits = _('yes') if size <= figures.limit else _('no')
            row += [fits, _largest(phase)]
        rows.append(row)
    title = _('the same training with a preset of _base_/memory')
    return cli.table(rows, header, title, right=1)


def _remarks(figures: Figures) -> Iterator[str]:
    yield _(
        'These are bytes of tensors. What the device takes besides (its '
        'context, workspaces, unused parts of the cache) comes on top.'
    )
    training, *validation = figures.phases
    if figures.accumulation > 1:
        text = N_(
            'A step sees {counts} batches, {samples} samples of each rank.'
        )
        counts = figures.accumulation
        yield _(text, counts=counts, samples=counts * training.batch_size)
    for phase, name in zip(figures.phases, _PHASES):
        if phase.why_real:
            text = N_(
                '{phase}: measured on real batches of 4 and 8 and '
                'extrapolated, because the model needs values: {reason}'
            )
            yield _(text, phase=_(name), reason=phase.why_real)
    for one in validation:
        if one.peak.total > training.peak.total:
            yield _(
                'Validation takes more than training: {size} samples in a '
                'batch, against {training}. val_dataloader.batch_size={best} '
                'would take no more.',
                size=one.batch_size,
                training=training.batch_size,
                best=max(1, one.line.fitting(training.peak.total)),
            )
    for split, data in figures.data.items():
        text = N_(
            'Host RAM, {loader}: {workers:worker|workers} x {prefetch} '
            'prefetch: {size} in batches read ahead.'
        )
        if data.workers == 0:
            text = N_(
                'Host RAM, {loader}: no workers, so nothing is read ahead: '
                '{size} in a batch.'
            )
        yield _(
            text,
            loader=f'{split}_dataloader',
            workers=data.workers,
            prefetch=data.prefetch,
            size=readable(data.host_bytes),
        )


def _best_preset(figures: Figures) -> str:
    from mmstable.memory.estimate import PRESETS

    if figures.limit is None:
        return _('Say --device-memory 24GiB to learn which batch fits.')
    training, fitting = figures.phases[0], None
    if not figures.too_large:
        text = N_('Training fits into {limit}.')
    elif training not in figures.too_large:
        text = N_(
            'Training fits into {limit}, but validation does not: '
            'val_dataloader.batch_size={best} would.'
        )
    else:
        fitting = next(
            (
                one.name
                for one in PRESETS
                if figures.presets[one.name].peak.total <= figures.limit
            ),
            None,
        )
        text = N_(
            'Training does not fit into {limit}; with '
            "'mmstable::_base_/memory/{preset}.py' it does."
        )
        if fitting is None:
            text = N_(
                'Training does not fit into {limit}, with no preset either. '
                'The largest batch that fits without one: {largest}.'
            )
    return _(
        text,
        limit=readable(figures.limit),
        best=figures.phases[-1].largest,
        preset=fitting,
        largest=training.largest,
    )


def _build_model(cfg: Config) -> nn.Module:
    from mmengine.model import BaseModel

    from mmstable.cli.mistakes import build_model

    model = build_model(cfg, '{error}')
    own = getattr(type(model), 'train_step', None)
    if own is not BaseModel.train_step:
        name = type(model).__name__
        raise cli.usage_error(
            '{model} has a `train_step` of its own, which is not estimated.',
            model=name,
        )
    return model


def _build_optimizer(cfg: Config, model: nn.Module) -> Optimizer:
    from mmengine.optim import build_optim_wrapper

    kept = ('optimizer', 'paramwise_cfg', 'constructor')
    settings = {k: v for k, v in cfg.optim_wrapper.items() if k in kept}
    wrapper = build_optim_wrapper(
        model, dict(copy.deepcopy(settings), type='OptimWrapper')
    )
    return wrapper.optimizer


def _setup_of(cfg: Config) -> Setup:
    import torch

    from mmstable.memory.estimate import Setup

    wrapper, dtype = cfg.optim_wrapper, None
    if 'Amp' in str(wrapper.get('type', '')):
        dtype = getattr(torch, wrapper.get('dtype') or 'float16')
    recomputed: tuple[str, ...] | None = ()
    for hook in cfg.get('custom_hooks') or []:
        if str(hook.get('type', '')).endswith(_RECOMPUTING_HOOK):
            found = hook.get('modules')
            recomputed = None if found is None else tuple(found)
    accumulation = int(wrapper.get('accumulative_counts', 1))
    return Setup(dtype, accumulation, recomputed)


def _data_of(cfg: Config, train_size: int | None) -> dict[str, Data]:
    """Some samples of each split that there is."""
    from mmengine.runner import Runner

    from mmstable.cli.mistakes import explained
    from mmstable.memory.estimate import Data

    found = {}
    for split, size in (('train', train_size), ('val', None)):
        settings = cfg.get(f'{split}_dataloader')
        if not isinstance(settings, Mapping):
            continue
        settings = dict(copy.deepcopy(settings))
        workers = int(settings.get('num_workers', 0))
        prefetch = int(settings.pop('prefetch_factor', None) or 2)
        settings.pop('persistent_workers', None)
        settings['num_workers'] = 0
        with explained('{error}', cfg._cfg_dict):
            loader = Runner.build_dataloader(settings, seed=0)
            count = min(_SAMPLES, len(loader.dataset))
            samples = [loader.dataset[index] for index in range(count)]
        if not samples:
            raise cli.usage_error(_NO_DATA)
        own = settings.get('batch_size') or loader.batch_size or 1
        rest = size or int(own), workers, prefetch
        found[split] = Data(samples, loader.collate_fn, *rest)
    return found


def _as_json(figures: Figures) -> dict[str, Any]:
    phases = [*map(_as_dict, figures.phases), None]
    return {
        'device_memory': figures.limit,
        'fits': not figures.too_large if figures.limit else None,
        'accumulative_counts': figures.accumulation,
        'training': phases[0],
        'validation': phases[1],
        'presets': {k: _as_dict(one) for k, one in figures.presets.items()},
        'host': {
            split: {
                'workers': data.workers,
                'prefetch_factor': data.prefetch,
                'bytes': data.host_bytes,
            }
            for split, data in figures.data.items()
        },
    }


def _as_dict(phase: Phase) -> dict[str, Any]:
    return {
        'batch_size': phase.batch_size,
        **phase.peak._asdict(),
        'activations': phase.peak.activations,
        'bytes_per_sample': phase.line.each,
        'largest_batch': phase.largest,
        'way': 'real' if phase.why_real else 'fake',
        'why_real': phase.why_real,
    }


def _size(text: str) -> int:
    try:
        size = parse_size(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    if size < _LEAST_BYTES and not text.strip()[-1].isalpha():
        raise argparse.ArgumentTypeError(
            _(
                '{number} without a unit is {number} bytes: write '
                "'{number}GiB' or whatever is meant",
                number=text.strip(),
            )
        )
    return size


COMMAND = cli.Command(
    estimate,
    (
        cli.CONFIG,
        cli.option(
            '--device-memory',
            "memory of the device, as '24GiB'",
            type=_size,
            metavar='SIZE',
        ),
        cli.number(
            '--batch-size',
            1,
            'samples in a training batch; those of the config by default',
        ),
        cli.JSON_FILE,
        cli.CFG_OPTIONS,
    ),
    'Tell how many bytes of tensors training and validation take at '
    'their peak, without a GPU, and what data loading takes in host RAM. '
    'Exit codes: 0 it fits, or no limit was given, {does_not_fit} it '
    'does not fit, 2 an error in the config.',
    {'does_not_fit': EXIT_DOES_NOT_FIT},
)
