"""``mmstable estimate``: tell what memory a config takes."""

from __future__ import annotations

import argparse
import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

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


@dataclass(frozen=True)
class Figures:
    """All that was found out about a config.

    Args:
        limit (int, optional): Memory of the device, in bytes.
        accumulation (int): Batches that make one step.
        training (Phase): What training takes.
        validation (Phase, optional): What validation takes.
        presets (dict[str, Phase]): What training takes with presets.
        data (dict[str, Data]): Data by the split: 'train', and perhaps
            'val'.
    """

    limit: int | None
    accumulation: int
    training: Phase
    validation: Phase | None
    presets: dict[str, Phase]
    data: dict[str, Data]

    @property
    def exceeds_limit(self) -> bool:
        """Whether training or validation takes more than there is."""
        if self.limit is None:
            return False
        return any(one.peak.total > self.limit for one in self.phases())

    def phases(self) -> list[Phase]:
        """Training, and validation if there is one."""
        both = (self.training, self.validation)
        return [one for one in both if one is not None]


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
    _check_wrapper(cfg)
    data = _data_of(cfg, args.batch_size)
    if 'train' not in data:
        raise cli.usage_error(_NO_DATA)
    train, val = data['train'], data.get('val')
    setup = _setup_of(cfg)
    estimator = Estimator(
        lambda: _build_model(cfg),
        lambda model: _build_optimizer(cfg, model),
        args.device_memory,
    )
    failed = N_('a step of the model cannot be run: {error}')
    with explained(failed), cli.working(_('measuring what the config takes')):
        figures = Figures(
            limit=args.device_memory,
            accumulation=setup.accumulation,
            training=estimator.training(train, setup),
            validation=estimator.validation(val, setup) if val else None,
            presets=estimator.presets(train, setup),
            data=data,
        )
    cli.show(
        _parts(figures),
        *_remarks(figures),
        _presets(figures),
        _best_preset(figures),
    )
    if args.json is not None:
        cli.write_json(args.json, _as_json(figures))
    return EXIT_DOES_NOT_FIT if figures.exceeds_limit else 0


def _parts(figures: Figures) -> Any:
    phases = figures.phases()
    rows: list[Sequence[str] | None] = [
        [_('batch size'), *(str(one.batch_size) for one in phases)],
        *(
            [_(text), *(readable(getattr(x.peak, part)) for x in phases)]
            for part, text in _PARTS.items()
        ),
        None,
        [_('peak'), *(readable(one.peak.total) for one in phases)],
        [_('per sample'), *(readable(one.line.each) for one in phases)],
    ]
    if figures.limit is not None:
        most = [_largest(one) for one in phases]
        rows.append([_('largest batch that fits'), *most])
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


def _remarks(figures: Figures) -> list[str]:
    lines = [
        _(
            'These are bytes of tensors. What the device takes besides (its '
            'context, workspaces, unused parts of the cache) comes on top.'
        )
    ]
    if figures.accumulation > 1:
        samples = figures.training.batch_size * figures.accumulation
        lines.append(
            _(
                'A step sees {counts} batches, {samples} samples of each '
                'rank.',
                counts=figures.accumulation,
                samples=samples,
            )
        )
    for phase, name in zip(figures.phases(), _PHASES):
        if phase.why_real:
            lines.append(
                _(
                    '{phase}: measured on real batches of 4 and 8 and '
                    'extrapolated, because the model needs values: {reason}',
                    phase=_(name),
                    reason=phase.why_real,
                )
            )
    validation, training = figures.validation, figures.training
    if validation is not None and validation.peak.total > training.peak.total:
        lines.append(
            _(
                'Validation takes more than training: {size} samples in a '
                'batch, against {training}. val_dataloader.batch_size={best} '
                'would take no more.',
                size=validation.batch_size,
                training=training.batch_size,
                best=max(1, validation.line.fitting(training.peak.total)),
            )
        )
    for name, data in figures.data.items():
        lines.append(_about_loading(f'{name}_dataloader', data))
    return lines


def _about_loading(loader: str, data: Data) -> str:
    size = readable(data.host_bytes)
    if data.workers == 0:
        return _(
            'Host RAM, {loader}: no workers, so nothing is read ahead: '
            '{size} in a batch.',
            loader=loader,
            size=size,
        )
    return _(
        'Host RAM, {loader}: {workers:worker|workers} x {prefetch} prefetch: '
        '{size} in batches read ahead.',
        loader=loader,
        workers=data.workers,
        prefetch=data.prefetch,
        size=size,
    )


def _best_preset(figures: Figures) -> str:
    from mmstable.memory.estimate import PRESETS

    if figures.limit is None:
        return _('Say --device-memory 24GiB to learn which batch fits.')
    limit, validation = readable(figures.limit), figures.validation
    if not figures.exceeds_limit:
        return _('Training fits into {limit}.', limit=limit)
    if figures.training.peak.total <= figures.limit and validation:
        best = validation.largest
        return _(
            'Training fits into {limit}, but validation does not: '
            'val_dataloader.batch_size={best} would.',
            limit=limit,
            best=best,
        )
    for preset in PRESETS:
        if figures.presets[preset.name].peak.total <= figures.limit:
            return _(
                'Training does not fit into {limit}; with '
                "'mmstable::_base_/memory/{preset}.py' it does.",
                preset=preset.name,
                limit=limit,
            )
    return _(
        'Training does not fit into {limit}, with no preset either. The '
        'largest batch that fits without one: {largest}.',
        limit=limit,
        largest=figures.training.largest,
    )


def _check_wrapper(cfg: Config) -> None:
    wrapper = cfg.get('optim_wrapper')
    if not isinstance(wrapper, Mapping) or 'optimizer' not in wrapper:
        raise cli.usage_error(
            'the config has no `optim_wrapper` with one `optimizer`; '
            'several of them are not estimated.'
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
    return {
        'device_memory': figures.limit,
        'fits': not figures.exceeds_limit if figures.limit else None,
        'accumulative_counts': figures.accumulation,
        'training': _as_dict(figures.training),
        'validation': _as_dict(figures.validation),
        'presets': {
            name: _as_dict(phase) for name, phase in figures.presets.items()
        },
        'host': {
            split: {
                'workers': data.workers,
                'prefetch_factor': data.prefetch,
                'bytes': data.host_bytes,
            }
            for split, data in figures.data.items()
        },
    }


def _as_dict(phase: Phase | None) -> dict[str, Any] | None:
    if phase is None:
        return None
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
