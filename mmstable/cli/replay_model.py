"""The model of a bundle: built from a config, with the right weights."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from mmengine.config import Config
from mmengine.registry import MODELS, init_default_scope
from torch import Tensor
from torch.nn import Module

from mmstable.checkpoint.loading import load_file, no_dict
from mmstable.cli.command import say as say_for
from mmstable.cli.config_file import load_config
from mmstable.cli.config_mistakes import explain_mistake
from mmstable.cli.legacy_config import modernize
from mmstable.errors import CheckpointError, UsageError
from mmstable.forensics.bundle import CONFIG, Bundle
from mmstable.messages import _
from mmstable.optim.fp32_modules import Fp32Modules

_MOST_NAMED = 5


def build_model(bundle: Bundle, args: argparse.Namespace) -> Module:
    """Build the model as the runner would.

    Args:
        bundle (Bundle): The bundle.
        args (Namespace): ``config`` or ``trust_config`` says which config
            to run.

    Raises:
        UsageError: If neither is given, or it cannot be built.
    """
    path = args.config
    if args.trust_config:
        path = str(Path(args.bundle, CONFIG))
    if path is None:
        raise UsageError(
            _(
                'a bundle is data, and none of it is run. Name the config '
                'that builds the model with --config FILE; or, if you trust '
                "it, use '{path}' with --trust-config.",
                path=str(Path(args.bundle, CONFIG)),
            )
        )
    cfg = load_config(path)
    cfg = modernize(cfg, None, lambda text: say_for('replay', text))
    init_default_scope(cfg.get('default_scope') or 'mmengine')
    settings = cfg.get('model')
    if not isinstance(settings, dict):
        raise UsageError(_("'{path}' has no `model`.", path=path))
    if cfg.get('data_preprocessor') is not None:
        settings.setdefault('data_preprocessor', cfg.data_preprocessor)
    try:
        model: Module = MODELS.build(settings)
        _keep_precision(cfg, model)
    except Exception as error:
        mistake = explain_mistake(error)
        if mistake is None:
            text = ' '.join(f'{type(error).__name__}: {error}'.split())
            mistake = _('the model cannot be built: {error}', error=text)
        raise UsageError(mistake) from error
    return model.train()


def _keep_precision(cfg: Config, model: Module) -> None:
    """Leave modules out of autocast as the wrappers did."""
    for patterns in _settings_of(cfg.get('optim_wrapper'), 'fp32_modules'):
        Fp32Modules(patterns).install(model, 'cpu')


def _settings_of(wrapper: Any, name: str) -> Iterator[Any]:
    if isinstance(wrapper, Mapping):
        if wrapper.get(name):
            yield wrapper[name]
        for one in wrapper.values():
            yield from _settings_of(one, name)


def load_weights(
    bundle: Bundle, model: Module, args: argparse.Namespace
) -> None:
    """Give the model the weights of the fault, or those of a checkpoint.

    Args:
        bundle (Bundle): The bundle.
        model (Module): The model.
        args (Namespace): ``checkpoint`` names other weights.

    Raises:
        CheckpointError: If weights are missing or do not fit.
        UsageError: If the model is not that of the bundle.
    """
    index = bundle.index
    if args.checkpoint is not None:
        _load_checkpoint(bundle, model, args.checkpoint)
    elif bundle.model_state is not None:
        missing = bundle.load_into(model)
        if missing:
            raise UsageError(
                _(
                    'the config builds another model than the one of the '
                    'bundle, which has no such {names}.',
                    names=missing[:_MOST_NAMED],
                )
            )
    elif index.checkpoint is None:
        raise UsageError(
            _(
                'the bundle has no weights and names no checkpoint; name one '
                'with --checkpoint FILE.'
            )
        )
    else:
        sha256 = index.checkpoint_sha256 or None
        _load_checkpoint(bundle, model, index.checkpoint, sha256)


def _load_checkpoint(
    bundle: Bundle, model: Module, path: str, sha256: str | None = None
) -> None:
    content = load_file(path, sha256=sha256)
    if not isinstance(content, dict):
        raise no_dict(path, content)
    state = content.get('state_dict', content)
    if not isinstance(state, dict):
        raise no_dict(path, state)
    tensors = {k: v for k, v in state.items() if isinstance(v, Tensor)}
    missing = replace(bundle, model_state=tensors).load_into(model)
    # Buffers that are not saved stay as they were built.
    missing = [name for name in missing if name in model.state_dict()]
    if missing:
        raise CheckpointError(
            _(
                "'{path}' does not fit the model: it has no such {names}.",
                path=path,
                names=missing[:_MOST_NAMED],
            )
        )
