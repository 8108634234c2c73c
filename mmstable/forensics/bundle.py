"""A fault in a folder: all that a replay elsewhere needs.

::

    stability/faults/iter_120/
      bundle.json     what is here: iteration, wrappers, versions, notes
      step.pth        batch, random state and state of the loss scalers
      model.pth       weights and buffers, unless they are too large
      config.py       the config of the run, as text
      verdict.json    what was found, for programs
      verdict.txt     the same as text

It holds tensors and plain types only, and is read as data: nothing in it is
run.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, BinaryIO, Optional, cast

import torch
from mmengine.config import Config
from mmengine.runner import Runner
from torch import Tensor
from torch.nn import Module

from mmstable import runner_view
from mmstable.batch import Packed, unpack
from mmstable.checkpoint.catalog import newest_own_checkpoint
from mmstable.checkpoint.loading import BadCheckpoint, load_file
from mmstable.errors import EXIT_NOT_REPRODUCED, BundleError
from mmstable.events.codec import plain, read_record
from mmstable.events.log import versions
from mmstable.events.records import FaultExplained
from mmstable.forensics.replay import StepInputs, StepSetup
from mmstable.io.files import atomic_file, read_bounded, replace_text
from mmstable.io.schema import integer, list_of, optional, parse_json
from mmstable.messages import _
from mmstable.messages.secrets import mask_values
from mmstable.state.rng_check import check_rng

SCHEMA = 1
INDEX, STEP, MODEL, CONFIG = (
    'bundle.json',
    'step.pth',
    'model.pth',
    'config.py',
)
VERDICT, TEXT = 'verdict.json', 'verdict.txt'
_LONGEST_INDEX, _LONGEST_CONFIG = 1 << 22, 1 << 24
_MIB = 2**20


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
    # `X | None` cannot be read back on Python 3.9.
    checkpoint: Optional[str] = None  # noqa: UP045
    checkpoint_iteration: Optional[int] = None  # noqa: UP045
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
        for name, tensor in _model_tensors(model).items():
            saved = state.get(name)
            if saved is None or saved.shape != tensor.shape:
                missing.append(name)
            else:
                tensor.data.copy_(saved)
        return missing

    def inputs(self, model: Module) -> StepInputs:
        """The step of the fault, with a model that was built for it."""
        index = self.index
        return StepInputs(
            model,
            self.batch,
            index.setups,
            index.has_many,
            self.rng,
            self.indices,
        )


def _model_tensors(model: Module) -> dict[str, Tensor]:
    """Parameters and all buffers of a model, by name."""
    return {**dict(model.named_parameters()), **dict(model.named_buffers())}


def write_verdict(folder: Path, found: FaultExplained) -> None:
    """Write what was found into a bundle.

    Args:
        folder (Path): The bundle.
        found (FaultExplained): What was found.
    """
    replace_text(folder / TEXT, found.text + '\n', 'utf-8')
    _write_json(folder / VERDICT, found)


def _write_json(path: Path, content: Any) -> None:
    text = json.dumps(plain(content), indent=1, ensure_ascii=False)
    replace_text(path, text + '\n', 'utf-8')


def _read_json(path: Path) -> Any:
    return parse_json(read_bounded(path, _LONGEST_INDEX), _LONGEST_INDEX)


def read_verdict(folder: Path) -> FaultExplained | None:
    """Read what was found; None if there is nothing readable."""
    try:
        found: FaultExplained = read_record(
            FaultExplained, _read_json(folder / VERDICT)
        )
    except (OSError, ValueError):
        return None
    return found


def replay_bundle(folder: Path, timeout_s: float) -> str:
    """Run the step of a bundle again in a fresh process, on a CPU.

    The process writes its verdict into the bundle. It sees no GPU: a lost
    device would take it along.

    Args:
        folder (Path): A bundle of this run, whose config can be trusted.
        timeout_s (float): Seconds until it is ended.

    Returns:
        str: The reason why there is no verdict; '' if there is.
    """
    # What the script of this run can import.
    path = os.pathsep.join(one for one in sys.path if one)
    command = [sys.executable, '-m', 'mmstable', 'replay', str(folder)]
    try:
        done = subprocess.run(
            [*command, '--trust-config', '--write', '--quiet'],
            env={**os.environ, 'CUDA_VISIBLE_DEVICES': '', 'PYTHONPATH': path},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            timeout=timeout_s,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    lines = done.stderr.decode(errors='replace').strip().splitlines()
    is_done = done.returncode in (0, EXIT_NOT_REPRODUCED)
    return '' if is_done else (lines or [str(done.returncode)])[-1]


def read_bundle(folder: str | Path) -> Bundle:
    """Read a bundle.

    Args:
        folder (str or Path): The folder of the bundle.

    Raises:
        BundleError: If it is no bundle, or a damaged one.
    """
    folder = Path(folder)
    try:
        index = _read_index(_read_json(folder / INDEX))
        step = load_file(folder / STEP)
        if not isinstance(step, dict) or not {'batch', 'rng'} <= step.keys():
            raise ValueError(f'{STEP} must have a batch and a random state')
        try:
            rng = optional(check_rng)(step['rng'])
        except ValueError as error:
            raise ValueError(f'{STEP} has no random state: {error}') from error
        scalers = step.get('scalers', {})
        if not isinstance(scalers, dict):
            raise ValueError(f'{STEP} has scalers that are no dict')
        state = None
        if (folder / MODEL).exists():
            state = load_file(folder / MODEL)
            if not isinstance(state, dict) or not all(
                isinstance(name, str) and isinstance(one, Tensor)
                for name, one in state.items()
            ):
                raise ValueError(f'{MODEL} must be a dict of tensors')
        verdict = _read_json(folder / VERDICT)
        return Bundle(
            index,
            unpack(step['batch']),
            rng,
            scalers,
            tuple(list_of(integer(0))(step.get('indices', []))),
            state,
            str(read_bounded(folder / CONFIG, _LONGEST_CONFIG), 'utf-8'),
            verdict if isinstance(verdict, dict) else {},
        )
    except OSError as error:
        reason = f'{error.strerror}: {error.filename}'
        raise BundleError(folder, reason) from error
    except (BadCheckpoint, ValueError, TypeError) as error:
        raise BundleError(folder, str(error)) from error


def _read_index(content: Any) -> BundleIndex:
    schema = content.get('schema') if isinstance(content, dict) else None
    if isinstance(schema, int) and schema > SCHEMA:
        raise ValueError(f'schema {schema} is of a newer mmstable')
    index: BundleIndex = read_record(BundleIndex, content)
    if not index.setups:
        raise ValueError('`setups`: must have at least one wrapper')
    return index


def save_fault(
    runner: Runner,
    folder: Path,
    inputs: StepInputs,
    found: FaultExplained,
    max_size: float,
    is_lost: bool = False,
) -> None:
    """Write the bundle of a fault; its index comes last.

    Args:
        runner (Runner): The runner.
        folder (Path): Where to. It is made if it is not there.
        inputs (StepInputs): The step.
        found (FaultExplained): What was found.
        max_size (float): The most MiB that batch and weights may take each.
        is_lost (bool): Whether the device cannot be read any more. Defaults
            to False.
    """
    packed = Packed(inputs.batch)
    notes = [
        _('not saved, because it is no tensor: {path}', path=one)
        for one in packed.left_out
    ]
    batch, size = packed.value, packed.size / _MIB
    if size > max_size:
        batch = None
        notes.append(
            _(
                'the batch is not saved: {size:.0f} MiB are more than '
                '{limit:g}',
                size=size,
                limit=max_size,
            )
        )
    index = BundleIndex(
        found.iteration,
        found.rank,
        found.wrapper,
        inputs.setups,
        inputs.has_many,
        versions(),
    )
    tensors = _model_tensors(inputs.model)
    reason = _why_no_weights(tensors, max_size, is_lost)
    good = newest_own_checkpoint(runner) if reason else None
    notes += [reason] if reason else []
    if good is not None:
        path = str(good.path.absolute())
        notes.append(
            _(
                'weights are those of {path}, iteration {iteration}',
                path=path,
                iteration=good.iteration,
            )
        )
        index = replace(
            index,
            checkpoint=path,
            checkpoint_iteration=good.iteration,
            checkpoint_sha256=good.sha256,
        )
    scalers = {
        name: scaler.state_dict()
        for name, wrapper in runner_view.wrappers(runner).items()
        if not is_lost
        and (scaler := runner_view.loss_scaler(wrapper)) is not None
    }
    step = {
        'batch': batch,
        'rng': None if inputs.rng is None else dict(inputs.rng),
        'scalers': scalers,
        'indices': list(inputs.indices),
    }
    folder.mkdir(parents=True, exist_ok=True)
    _save(folder / STEP, step)
    if not reason:
        state = {
            name: one.detach().as_subclass(Tensor).cpu().clone()
            for name, one in tensors.items()
        }
        _save(folder / MODEL, state)
    config = Config(mask_values(runner.cfg.to_dict())).pretty_text
    replace_text(folder / CONFIG, config, 'utf-8')
    write_verdict(folder, found)
    _write_json(folder / INDEX, replace(index, notes=tuple(notes)))


def _why_no_weights(
    tensors: Mapping[str, Tensor], max_size: float, is_lost: bool
) -> str:
    if is_lost and any(one.device.type != 'cpu' for one in tensors.values()):
        return _('the weights are on the lost device')
    sizes = [one.numel() * one.element_size() for one in tensors.values()]
    size = sum(sizes) / _MIB
    if size <= max_size:
        return ''
    return _(
        'the weights are not saved: {size:.0f} MiB are more than {limit:g}',
        size=size,
        limit=max_size,
    )


def _save(path: Path, content: Any) -> None:
    with atomic_file(path) as stream:
        torch.save(content, cast(BinaryIO, stream))
