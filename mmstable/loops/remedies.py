"""What can be done for a batch that does not fit, in this run?"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from mmengine.runner import Runner
from torch.nn import Module

from mmstable import run_view
from mmstable.batches import batch_size
from mmstable.loops.split_step import train_in_parts
from mmstable.memory.ladder import Remedy, Rung, build_ladder
from mmstable.memory.module_choice import (
    batch_norms,
    blocks_of,
    choose_modules,
    find_backbones,
)
from mmstable.memory.oom_settings import OomSettings
from mmstable.memory.recompute import recomputed
from mmstable.messages import _

_EQUAL = (Remedy.RETRY, Remedy.OFFLOAD, Remedy.RECOMPUTE)


class Remedies:
    """Runs the training step of a model in ways that take less memory.

    Args:
        runner (Runner): The runner, whose model and wrappers are built.
        settings (OomSettings): What is allowed.
        owner (str): Whose settings they are.
    """

    def __init__(
        self, runner: Runner, settings: OomSettings, owner: str
    ) -> None:
        self._runner = runner
        self._settings = settings
        model = run_view.saved_model(runner)
        self.modules: dict[str, Module] = {}
        self.is_compiled = run_view.is_compiled(runner.model)
        if settings.chunk:
            try:
                self.modules = choose_modules(model, settings.chunk, 'chunk')
            except ValueError as error:
                raise ValueError(f'{owner}: `oom`: {error}') from None
        elif not self.is_compiled:
            self.modules = find_backbones(model)

    def ladder(self, batch: Any) -> list[Rung]:
        """All rungs for a batch, the mildest first.

        Args:
            batch (Any): What the data loader gave.
        """
        offload = self._settings.offload
        if offload is None:
            offload = self.device.type != 'cpu'
        computes = bool(self.modules) and not self.is_compiled
        splits = self._settings.allow_approximate and (
            not run_view.has_many_wrappers(self._runner)
        )
        return build_ladder(
            batch_size(batch), offload, computes, computes, splits
        )

    def missing(self, batch: Any) -> list[str]:
        """Why some rungs are not there.

        Args:
            batch (Any): What the data loader gave.
        """
        reasons = []
        if self.is_compiled:
            reasons.append(_('the model is compiled'))
        elif not self.modules:
            reasons.append(
                _(
                    "the model has no module called 'backbone'. Name those "
                    'that compute each sample by itself: '
                    "train_cfg.oom=dict(chunk=['...'])"
                )
            )
        if batch_size(batch) < 2:
            reasons.append(
                _('the batch has one sample, or its size cannot be told')
            )
        return reasons

    @property
    def device(self) -> torch.device:
        """Where the model is."""
        return next(self._runner.model.parameters()).device

    def run(self, rung: Rung | None, batch: Any) -> Any:
        """The outputs of the model's ``train_step``.

        Args:
            rung (Rung, optional): The rung; None for no remedy.
            batch (Any): What the data loader gave.
        """
        runner: Any = self._runner
        wrapper = runner.optim_wrapper
        if rung is not None and rung.remedy is Remedy.SPLIT:
            return train_in_parts(runner.model, batch, wrapper, rung.parts)
        with self._applied(rung):
            return runner.model.train_step(batch, optim_wrapper=wrapper)

    @contextmanager
    def _applied(self, rung: Rung | None) -> Iterator[None]:
        remedy = None if rung is None else rung.remedy
        modules = list(self.modules.values())
        if remedy is Remedy.OFFLOAD:
            with torch.autograd.graph.save_on_cpu():
                yield
        elif remedy is Remedy.RECOMPUTE:
            blocks = [block for one in modules for block in blocks_of(one)]
            with recomputed(blocks):
                yield
        elif rung is not None and remedy is Remedy.CHUNK:
            with recomputed(modules, rung.parts):
                yield
        else:
            yield

    def gradients(self, rung: Rung) -> tuple[str, str]:
        """How gradients compare with those of the whole batch, and why.

        Args:
            rung (Rung): What was done.
        """
        if rung.remedy in _EQUAL:
            return 'equal', ''
        if rung.remedy is Remedy.SKIP:
            return '', ''
        text = self.describe(rung)
        if rung.remedy is Remedy.CHUNK and not self._norms():
            return 'rounding', ''
        return 'approximate', text

    def describe(self, rung: Rung) -> str:
        """What a rung does and changes, in words.

        Args:
            rung (Rung): The rung.
        """
        modules = list(self.modules)
        if rung.remedy is Remedy.RECOMPUTE:
            return _(
                'activations of {modules} computed again in the backward '
                'pass: slower, same gradients',
                modules=modules,
            )
        if rung.remedy is Remedy.SPLIT:
            return _(
                '{parts} parts of the batch, each with a loss of its own: '
                'approximate, because losses that are averaged over valid '
                'pixels or positives, and BatchNorm, depend on the whole '
                'batch',
                parts=rung.parts,
            )
        if rung.remedy is Remedy.CHUNK:
            norms, note = self._norms(), ''
            if norms:
                note = _(
                    '; but {count:layer normalises|layers normalise} by the '
                    'statistics of each part ({name}), which makes them '
                    'approximate',
                    count=len(norms),
                    name=norms[0],
                )
            return _(
                '{modules} in {parts} parts of the batch, with one loss over '
                'the whole batch: slower, gradients differ by rounding{note}',
                modules=modules,
                parts=rung.parts,
                note=note,
            )
        if rung.remedy is Remedy.RETRY:
            return _('the batch once more with an empty cache: same gradients')
        if rung.remedy is Remedy.OFFLOAD:
            return _(
                'activations in the memory of the host: slower, same gradients'
            )
        return _('leaving the batch out')

    def _norms(self) -> list[str]:
        return batch_norms(list(self.modules.values()))
