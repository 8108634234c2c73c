"""Put what is known of a fault into a bundle."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from mmengine.config import Config
from mmengine.runner import Runner
from torch import Tensor
from torch.nn import Module

from mmstable import run_view
from mmstable.checkpoint.finder import find_checkpoint
from mmstable.events.json_lines import plain
from mmstable.events.number_records import FaultExplained
from mmstable.events.run_header import versions
from mmstable.forensics.bundle import (
    BundleIndex,
    model_tensors,
    write_bundle,
)
from mmstable.forensics.plain_batch import Packed
from mmstable.forensics.replay import StepScene
from mmstable.messages import _
from mmstable.messages.secrets import mask_values

_MIB = 2**20


def save_fault(
    runner: Runner,
    folder: Path,
    scene: StepScene,
    found: FaultExplained,
    text: str,
    max_size: float,
) -> BundleIndex:
    """Write the bundle of a fault.

    Args:
        runner (Runner): The runner.
        folder (Path): Where to.
        scene (StepScene): The step.
        found (FaultExplained): What was found.
        text (str): The same for people.
        max_size (float): The most MiB that batch and weights may take each.

    Returns:
        BundleIndex: What the bundle says of itself.
    """
    notes: list[str] = []
    index = BundleIndex(
        iteration=found.iteration,
        rank=found.rank,
        wrapper=found.wrapper,
        setups=scene.setups,
        has_many=scene.has_many,
        versions=versions(),
    )
    state, index = _pack_model(runner, scene.model, index, max_size, notes)
    step = {
        'batch': _pack_batch(scene.batch, max_size, notes),
        'rng': None if scene.rng is None else dict(scene.rng),
        'scalers': _scalers(runner),
        'indices': list(scene.indices),
    }
    index = replace(index, notes=tuple(notes))
    config = Config(mask_values(runner.cfg.to_dict())).pretty_text
    write_bundle(folder, index, step, state, config, plain(found), text)
    return index


def _pack_batch(batch: Any, max_size: float, notes: list[str]) -> Any:
    packed = Packed(batch)
    notes += [
        _('not saved, because it is no tensor: {path}', path=one)
        for one in packed.left_out
    ]
    size = packed.size / _MIB
    if size <= max_size:
        return packed.value
    notes.append(
        _(
            'the batch is not saved: {size:.0f} MiB are more than {limit:g}',
            size=size,
            limit=max_size,
        )
    )
    return None


def _pack_model(
    runner: Runner,
    model: Module,
    index: BundleIndex,
    max_size: float,
    notes: list[str],
) -> tuple[dict[str, Tensor] | None, BundleIndex]:
    tensors = model_tensors(model)
    sizes = [one.numel() * one.element_size() for one in tensors.values()]
    size = sum(sizes) / _MIB
    if size <= max_size:
        state = {
            name: one.detach().as_subclass(Tensor).cpu().clone()
            for name, one in tensors.items()
        }
        return state, index
    notes.append(
        _(
            'the weights are not saved: {size:.0f} MiB are more than '
            '{limit:g}',
            size=size,
            limit=max_size,
        )
    )
    good = find_checkpoint(Path(runner.work_dir)).found
    if good is None:
        return None, index
    path = str(good.path.absolute())
    notes.append(
        _(
            'weights are those of {path}, iteration {iteration}',
            path=path,
            iteration=good.iteration,
        )
    )
    return None, replace(
        index,
        checkpoint=path,
        checkpoint_iteration=good.iteration,
        checkpoint_sha256=good.sha256,
    )


def _scalers(runner: Runner) -> dict[str, Any]:
    found = {}
    for name, wrapper in run_view.wrappers(runner).items():
        scaler = run_view.loss_scaler(wrapper)
        if scaler is not None:
            found[name] = scaler.state_dict()
    return found
