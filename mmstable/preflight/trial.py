"""Build a model and its optimizer, and do one step on the CPU."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from mmengine.config import Config
from mmengine.optim import build_optim_wrapper
from mmengine.registry import MODELS, init_default_scope
from mmengine.runner import Runner
from torch.nn import Module

_SAMPLES = 2
# Of a plain wrapper. Mixed precision is not tried: it needs a GPU.
_OF_WRAPPER = ('optimizer', 'paramwise_cfg', 'constructor')
_OF_WORKERS = ('persistent_workers', 'prefetch_factor', 'pin_memory')


@dataclass
class Trial:
    """What came out of it.

    Args:
        parameters (int): How many are to be trained.
        parameter_bytes (int): What they take.
        unseen (list): Names of those that the optimizer does not have.
        without_gradient (list): Names of those that one step leaves alone.
        failures (list): What failed, and why.
    """

    parameters: int = 0
    parameter_bytes: int = 0
    unseen: list[str] = field(default_factory=list)
    without_gradient: list[str] = field(default_factory=list)
    failures: list[tuple[str, str]] = field(default_factory=list)

    def attempt(self, what: str, action: Callable[[], Any]) -> Any:
        """Do a part of it; None if that fails, which is noted."""
        try:
            return action()
        except Exception as error:
            reason = ' '.join(f'{type(error).__name__}: {error}'.split())
            self.failures.append((what, reason))
            return None


def try_out(cfg: Config) -> Trial:
    """Build what a config describes, and train with two samples once.

    Args:
        cfg (Config): The config, left as it is.
    """
    cfg = copy.deepcopy(cfg)
    init_default_scope(cfg.get('default_scope') or 'mmengine')
    trial = Trial()
    model = trial.attempt('model', lambda: _build_model(cfg))
    if model is None:
        return trial
    trained = {n: p for n, p in model.named_parameters() if p.requires_grad}
    trial.parameters = len(trained)
    trial.parameter_bytes = sum(
        p.numel() * p.element_size() for p in model.parameters()
    )
    wrapper = trial.attempt(
        'optim_wrapper',
        lambda: build_optim_wrapper(model, _plain(cfg.optim_wrapper)),
    )
    if wrapper is None:
        return trial
    held = {
        id(parameter)
        for one in _several(wrapper)
        for group in one.optimizer.param_groups
        for parameter in group['params']
    }
    trial.unseen = [n for n, p in trained.items() if id(p) not in held]
    batch = trial.attempt('train_dataloader', lambda: _first_batch(cfg))
    if batch is None:
        return trial
    touched: set[str] = set()
    for name, parameter in trained.items():
        parameter.register_hook(lambda _, name=name: touched.add(name))
    model.train()
    failed = len(trial.failures)
    trial.attempt('train_step', lambda: model.train_step(batch, wrapper))
    if len(trial.failures) == failed:
        trial.without_gradient = [n for n in trained if n not in touched]
    return trial


def _build_model(cfg: Config) -> Module:
    settings = cfg.model
    if cfg.get('data_preprocessor') is not None:
        # As the runner does.
        settings.setdefault('data_preprocessor', cfg.data_preprocessor)
    return MODELS.build(settings)


def _plain(wrapper: Mapping[str, Any]) -> Any:
    if 'optimizer' not in wrapper:
        return {
            name: _plain(value) if isinstance(value, Mapping) else value
            for name, value in wrapper.items()
        }
    kept = {k: v for k, v in wrapper.items() if k in _OF_WRAPPER}
    return {'type': 'OptimWrapper', **kept}


def _several(wrapper: Any) -> list[Any]:
    inner = getattr(wrapper, 'optim_wrappers', None)
    return list(inner.values()) if inner is not None else [wrapper]


def _first_batch(cfg: Config) -> Any:
    loader = dict(cfg.train_dataloader)
    for name in _OF_WORKERS:
        loader.pop(name, None)
    loader['num_workers'] = 0
    if 'batch_size' in loader:
        loader['batch_size'] = min(_SAMPLES, loader['batch_size'])
    return next(iter(Runner.build_dataloader(loader, seed=0)))
