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
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, BinaryIO, cast

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
from mmstable.io.schema import (
    boolean,
    integer,
    list_of,
    mapping_of,
    number,
    optional,
    parse_json,
    record,
    text,
)
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
    write_verdict(folder, verdict, verdict_text)
    replace_text(folder / INDEX, _json(asdict(index)), 'utf-8')


def write_verdict(folder: Path, verdict: Mapping[str, Any], text: str) -> None:
    """Write what was found into a bundle.

    Args:
        folder (Path): The bundle.
        verdict (Mapping): What was found, in types of JSON.
        text (str): The same for people.
    """
    replace_text(folder / TEXT, text + '\n', 'utf-8')
    replace_text(folder / VERDICT, _json(verdict), 'utf-8')


def read_verdict(folder: Path) -> FaultExplained | None:
    """Read what was found; None if there is nothing readable."""
    try:
        content = read_bounded(folder / VERDICT, _LONGEST_INDEX)
        known = parse_json(content, _LONGEST_INDEX)
        found: FaultExplained = read_record(FaultExplained, known)
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


def _save(path: Path, content: Any) -> None:
    with atomic_file(path) as stream:
        torch.save(content, cast(BinaryIO, stream))


def _json(content: Mapping[str, Any]) -> str:
    return json.dumps(content, indent=1, ensure_ascii=False) + '\n'


_LONGEST_INDEX, _LONGEST_CONFIG = 1 << 22, 1 << 24


def read_bundle(folder: str | Path) -> Bundle:
    """Read a bundle.

    Args:
        folder (str or Path): The folder of the bundle.

    Raises:
        BundleError: If it is no bundle, or a damaged one.
    """
    folder = Path(folder)
    try:
        index = _read_index(folder)
        step = load_file(folder / STEP)
        model_state = None
        if (folder / MODEL).exists():
            model_state = _check_state(load_file(folder / MODEL))
        batch, rng, scalers, indices = _check_step(step)
        config = read_bounded(folder / CONFIG, _LONGEST_CONFIG)
        verdict = parse_json(
            read_bounded(folder / VERDICT, _LONGEST_INDEX), _LONGEST_INDEX
        )
        return Bundle(
            index,
            batch,
            rng,
            scalers,
            indices,
            model_state,
            str(config, 'utf-8'),
            verdict if isinstance(verdict, dict) else {},
        )
    except BadCheckpoint as error:
        raise BundleError(folder, str(error)) from error
    except OSError as error:
        reason = f'{error.strerror}: {error.filename}'
        raise BundleError(folder, reason) from error
    except (ValueError, TypeError) as error:
        raise BundleError(folder, str(error)) from error


_NAME = text(4096)


_check_setup = record(
    dtype=optional(text(32)),
    loss_scale=number,
    loss_factor=integer(1),
    parameters=list_of(_NAME, 1 << 20),
)
_check_index = record(
    iteration=integer(0),
    rank=integer(0),
    wrapper=_NAME,
    setups=mapping_of(_NAME, _check_setup),
    has_many=boolean,
    versions=mapping_of(_NAME, text(256)),
    checkpoint=optional(_NAME),
    checkpoint_iteration=optional(integer(0)),
    checkpoint_sha256=text(64),
    notes=list_of(_NAME, 1000),
    schema=integer(1),
)


def _read_index(folder: Path) -> BundleIndex:
    content = read_bounded(folder / INDEX, _LONGEST_INDEX)
    known = parse_json(content, _LONGEST_INDEX)
    schema = known.get('schema') if isinstance(known, dict) else None
    if isinstance(schema, int) and schema > SCHEMA:
        raise ValueError(f'schema {schema} is of a newer mmstable')
    facts = _check_index(known)
    if not facts['setups']:
        raise ValueError('`setups`: must have at least one wrapper')
    setups = {
        name: StepSetup(**{**one, 'parameters': tuple(one['parameters'])})
        for name, one in facts['setups'].items()
    }
    notes = tuple(facts['notes'])
    return BundleIndex(**{**facts, 'setups': setups, 'notes': notes})


def _check_step(
    step: Any,
) -> tuple[Any, Any, dict[str, Any], tuple[int, ...]]:
    if not isinstance(step, dict) or not {'batch', 'rng'} <= step.keys():
        raise ValueError(f'{STEP} must have a batch and a random state')
    rng, scalers = step['rng'], step.get('scalers', {})
    try:
        rng = optional(check_rng)(rng)
    except ValueError as error:
        raise ValueError(f'{STEP} has no random state: {error}') from error
    if not isinstance(scalers, dict):
        raise ValueError(f'{STEP} has scalers that are no dict')
    indices = list_of(integer(0), 1 << 20)(step.get('indices', []))
    return unpack(step['batch']), rng, scalers, tuple(indices)


def _check_state(state: Any) -> dict[str, Tensor]:
    if not isinstance(state, dict) or not all(
        isinstance(name, str) and isinstance(one, Tensor)
        for name, one in state.items()
    ):
        raise ValueError(f'{MODEL} must be a dict of tensors')
    return state


_MIB = 2**20


def save_fault(
    runner: Runner,
    folder: Path,
    inputs: StepInputs,
    found: FaultExplained,
    text: str,
    max_size: float,
    is_lost: bool = False,
) -> BundleIndex:
    """Write the bundle of a fault.

    Args:
        runner (Runner): The runner.
        folder (Path): Where to.
        inputs (StepInputs): The step.
        found (FaultExplained): What was found.
        text (str): The same for people.
        max_size (float): The most MiB that batch and weights may take each.
        is_lost (bool): Whether the device cannot be read any more. Defaults
            to False.

    Returns:
        BundleIndex: What the bundle says of itself.
    """
    notes: list[str] = []
    index = BundleIndex(
        iteration=found.iteration,
        rank=found.rank,
        wrapper=found.wrapper,
        setups=inputs.setups,
        has_many=inputs.has_many,
        versions=versions(),
    )
    state, index = _pack_model(
        runner, inputs.model, index, max_size, is_lost, notes
    )
    step = {
        'batch': _pack_batch(inputs.batch, max_size, notes),
        'rng': None if inputs.rng is None else dict(inputs.rng),
        'scalers': {} if is_lost else _scalers(runner),
        'indices': list(inputs.indices),
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
    is_lost: bool,
    notes: list[str],
) -> tuple[dict[str, Tensor] | None, BundleIndex]:
    tensors = model_tensors(model)
    if is_lost and any(one.device.type != 'cpu' for one in tensors.values()):
        notes.append(_('the weights are on the lost device'))
        return None, _name_checkpoint(runner, index, notes)
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
    return None, _name_checkpoint(runner, index, notes)


def _name_checkpoint(
    runner: Runner, index: BundleIndex, notes: list[str]
) -> BundleIndex:
    good = newest_own_checkpoint(runner)
    if good is None:
        return index
    path = str(good.path.absolute())
    notes.append(
        _(
            'weights are those of {path}, iteration {iteration}',
            path=path,
            iteration=good.iteration,
        )
    )
    return replace(
        index,
        checkpoint=path,
        checkpoint_iteration=good.iteration,
        checkpoint_sha256=good.sha256,
    )


def _scalers(runner: Runner) -> dict[str, Any]:
    found = {}
    for name, wrapper in runner_view.wrappers(runner).items():
        scaler = runner_view.loss_scaler(wrapper)
        if scaler is not None:
            found[name] = scaler.state_dict()
    return found
