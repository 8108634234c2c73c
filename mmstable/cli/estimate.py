"""``mmstable estimate``: from a config to bytes."""

from __future__ import annotations

import argparse
import copy
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from mmengine.config import Config
from mmengine.model import BaseModel
from mmengine.optim import build_optim_wrapper
from mmengine.registry import MODELS, init_default_scope
from mmengine.runner import Runner
from torch import nn
from torch.optim import Optimizer

from mmstable.checkpoint.atomic_file import replace_text
from mmstable.cli.command import say as say_for
from mmstable.cli.commands.estimate import EXIT_DOES_NOT_FIT
from mmstable.cli.config_file import load_config
from mmstable.cli.config_mistakes import explain_mistake
from mmstable.cli.config_options import read_options
from mmstable.cli.estimate_table import Figures, print_figures
from mmstable.cli.legacy_config import modernize
from mmstable.cli.progress import working
from mmstable.cli.texts import NO_FOLDER
from mmstable.errors import UsageError
from mmstable.memory.estimate import Data, Estimator, Phase, Setup
from mmstable.memory.tensor_bytes import can_measure
from mmstable.messages import N_, _

# Samples that a batch is made of.
_SAMPLES = 4
_RECOMPUTING_HOOK = 'SafeActivationCheckpointHook'
_NO_DATA = N_('the config has no `train_dataloader` with samples.')


def estimate(args: argparse.Namespace) -> int:
    """Tell what a config takes, and return the exit code."""
    if not can_measure():
        raise UsageError(
            _(
                'torch {version} cannot count bytes of tensors '
                '(torch.distributed._tools.mem_tracker is missing); a torch '
                'from 2.5 on can. It may be another one than that of the '
                'training.',
                version=torch.__version__,
            )
        )
    cfg = _load(args)
    _check_wrapper(cfg)
    train = _data_of(cfg, 'train', args.batch_size)
    if train is None:
        raise UsageError(_(_NO_DATA))
    setup = _setup_of(cfg)
    limit = args.device_memory
    estimator = Estimator(
        lambda: _build_model(cfg),
        lambda model: _build_optimizer(cfg, model),
        limit,
    )
    validation = _data_of(cfg, 'val')
    try:
        with working(_('measuring what the config takes')):
            figures = Figures(
                limit=limit,
                accumulation=setup.accumulation,
                training=estimator.training(train, setup),
                validation=None
                if validation is None
                else estimator.validation(validation, setup),
                presets=estimator.presets(train, setup),
                train_data=train,
                val_data=validation,
            )
    except UsageError:
        raise
    except Exception as error:
        text = ' '.join(f'{type(error).__name__}: {error}'.split())
        raise UsageError(
            _('a step of the model cannot be run: {error}', error=text)
        ) from error
    print_figures(figures)
    if args.json is not None:
        _write_json(Path(args.json), figures)
    return EXIT_DOES_NOT_FIT if figures.exceeds_limit else 0


def _load(args: argparse.Namespace) -> Config:
    folder = os.path.dirname(args.json or '')
    if not os.path.isdir(folder or '.'):
        raise UsageError(_(NO_FOLDER, folder=folder))
    options = read_options(args.cfg_options or [])
    cfg = load_config(args.config)
    cfg = modernize(cfg, options, lambda text: say_for('estimate', text))
    # As the runner does: names in the config are looked up there.
    init_default_scope(cfg.get('default_scope') or 'mmengine')
    return cfg


def _check_wrapper(cfg: Config) -> None:
    wrapper = cfg.get('optim_wrapper')
    if not isinstance(wrapper, Mapping) or 'optimizer' not in wrapper:
        raise UsageError(
            _(
                'the config has no `optim_wrapper` with one `optimizer`; '
                'several of them are not estimated.'
            )
        )


def _build_model(cfg: Config) -> nn.Module:
    settings = copy.deepcopy(cfg.get('model'))
    if not isinstance(settings, dict):
        raise UsageError(_('the config has no `model`.'))
    if cfg.get('data_preprocessor') is not None:
        settings.setdefault('data_preprocessor', cfg.data_preprocessor)
    try:
        model = MODELS.build(settings)
    except Exception as error:
        raise _mistake(error) from error
    if type(model).train_step is not BaseModel.train_step:
        name = type(model).__name__
        raise UsageError(
            _(
                '{model} has a `train_step` of its own, which is not '
                'estimated.',
                model=name,
            )
        )
    return model


def _build_optimizer(cfg: Config, model: nn.Module) -> Optimizer:
    kept = ('optimizer', 'paramwise_cfg', 'constructor')
    settings = {k: v for k, v in cfg.optim_wrapper.items() if k in kept}
    wrapper = build_optim_wrapper(
        model, dict(copy.deepcopy(settings), type='OptimWrapper')
    )
    return wrapper.optimizer


def _setup_of(cfg: Config) -> Setup:
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


def _data_of(cfg: Config, split: str, size: int | None = None) -> Data | None:
    settings = cfg.get(f'{split}_dataloader')
    if not isinstance(settings, Mapping):
        return None
    settings = dict(copy.deepcopy(settings), num_workers=0)
    workers = int(cfg[f'{split}_dataloader'].get('num_workers', 0))
    prefetch = int(settings.pop('prefetch_factor', None) or 2)
    settings.pop('persistent_workers', None)
    try:
        loader = Runner.build_dataloader(settings, seed=0)
        count = min(_SAMPLES, len(loader.dataset))
        samples = [loader.dataset[index] for index in range(count)]
    except Exception as error:
        raise _mistake(error) from error
    if not samples:
        raise UsageError(_(_NO_DATA))
    if size is None:
        size = int(settings.get('batch_size') or loader.batch_size or 1)
    return Data(samples, loader.collate_fn, size, workers, prefetch)


def _mistake(error: Exception) -> UsageError:
    if isinstance(error, UsageError):
        return error
    text = ' '.join(f'{type(error).__name__}: {error}'.split())
    return UsageError(explain_mistake(error) or text)


def _write_json(path: Path, figures: Figures) -> None:
    content = {
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
            for split, data in figures.data().items()
        },
    }
    replace_text(path, json.dumps(content, indent=1) + '\n')


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
