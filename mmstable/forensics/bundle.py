"""A fault in a folder: all that is needed to look at it again elsewhere.

::

    stability/faults/iter_120/
      bundle.json     what is here: iteration, wrappers, versions, notes
      step.pth        batch, random state and state of the loss scalers
      model.pth       weights and buffers, unless they are too large
      config.py       the config of the run, as text
      verdict.json    what was found, for programs
      verdict.txt     the same for people

Only tensors and plain types are in it. It is read as data by
:func:`mmstable.forensics.bundle_reader.read_bundle`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, BinaryIO, cast

import torch
from torch import Tensor
from torch.nn import Module

from mmstable.checkpoint.atomic_file import atomic_file, replace_text
from mmstable.forensics.replay import StepScene
from mmstable.forensics.step_setup import StepSetup

SCHEMA = 1
INDEX, STEP, MODEL, CONFIG = (
    'bundle.json',
    'step.pth',
    'model.pth',
    'config.py',
)
VERDICT, TEXT = 'verdict.json', 'verdict.txt'


@dataclass(frozen=True)
class BundleIndex:
    """What a bundle says of itself.

    Args:
        iteration (int): The iteration of the fault.
        rank (int): The process that it happened to.
        wrapper (str): The wrapper whose step was bad; '' if none was.
        setups (Mapping): What each wrapper adds to a step, by its name.
        has_many (bool): Whether the model gets a dict of wrappers.
        versions (Mapping): Of mmstable, mmengine, torch and python.
        checkpoint (str, optional): A checkpoint with weights from before the
            fault, where those of the fault are too large. Defaults to None.
        checkpoint_iteration (int, optional): Its iteration. Defaults to None.
        checkpoint_sha256 (str): Its digest. Defaults to ''.
        notes (tuple[str]): What is missing, and why. Defaults to ().
        schema (int): Version of the format. Defaults to 1.
    """

    iteration: int
    rank: int
    wrapper: str
    setups: Mapping[str, StepSetup]
    has_many: bool
    versions: Mapping[str, str]
    checkpoint: str | None = None
    checkpoint_iteration: int | None = None
    checkpoint_sha256: str = ''
    notes: tuple[str, ...] = ()
    schema: int = SCHEMA


@dataclass(frozen=True)
class Bundle:
    """A bundle that was read.

    Args:
        index (BundleIndex): What it says of itself.
        batch (Any): The batch; None if it was too large.
        rng (dict, optional): The random state before the step.
        scalers (dict): States of the loss scalers, by wrapper.
        indices (tuple[int]): Of the samples in the data set, if known.
        model_state (dict, optional): Weights and buffers, by name.
        config_text (str): The config of the run.
        verdict (dict): What was found: the fields of
            :class:`~mmstable.events.records.FaultExplained`.
    """

    index: BundleIndex
    batch: Any
    rng: dict[str, Any] | None
    scalers: dict[str, Any]
    indices: tuple[int, ...]
    model_state: dict[str, Tensor] | None
    config_text: str
    verdict: dict[str, Any] = field(default_factory=dict)

    def load_into(self, model: Module) -> list[str]:
        """Give a model the weights and buffers of the fault.

        Args:
            model (Module): The model that the config builds.

        Returns:
            list[str]: Names that the model has and the bundle has not, or
            with another shape.
        """
        state = self.model_state or {}
        missing = []
        for name, tensor in model_tensors(model).items():
            saved = state.get(name)
            if saved is None or saved.shape != tensor.shape:
                missing.append(name)
            else:
                tensor.data.copy_(saved)
        return missing

    def scene(self, model: Module) -> StepScene:
        """The step of the fault, with a model that was built for it."""
        index = self.index
        return StepScene(
            model,
            self.batch,
            index.setups,
            index.has_many,
            self.rng,
            self.indices,
        )


def model_tensors(model: Module) -> dict[str, Tensor]:
    """Parameters and all buffers of a model, by name."""
    return {**dict(model.named_parameters()), **dict(model.named_buffers())}


def write_bundle(
    folder: Path,
    index: BundleIndex,
    step: Mapping[str, Any],
    model_state: Mapping[str, Tensor] | None,
    config_text: str,
    verdict: Mapping[str, Any],
    verdict_text: str,
) -> None:
    """Write a bundle; its index comes last.

    Args:
        folder (Path): Where to. It is made if it is not there.
        index (BundleIndex): What the bundle says of itself.
        step (Mapping): ``batch`` as of :class:`Packed`, ``rng``,
            ``scalers`` and ``indices``.
        model_state (Mapping, optional): Weights and buffers.
        config_text (str): The config of the run.
        verdict (Mapping): What was found, in types of JSON.
        verdict_text (str): The same for people.
    """
    folder.mkdir(parents=True, exist_ok=True)
    _save(folder / STEP, dict(step))
    if model_state is not None:
        _save(folder / MODEL, dict(model_state))
    replace_text(folder / CONFIG, config_text, 'utf-8')
    replace_text(folder / TEXT, verdict_text + '\n', 'utf-8')
    replace_text(folder / VERDICT, _json(verdict), 'utf-8')
    replace_text(folder / INDEX, _json(asdict(index)), 'utf-8')


def _save(path: Path, content: Any) -> None:
    with atomic_file(path) as stream:
        torch.save(content, cast(BinaryIO, stream))


def _json(content: Mapping[str, Any]) -> str:
    return json.dumps(content, indent=1, ensure_ascii=False) + '\n'
