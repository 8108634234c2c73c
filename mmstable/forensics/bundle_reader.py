"""Read the bundle of a fault; only data, nothing in it is run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from torch import Tensor

from mmstable.checked_json import (
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
from mmstable.checkpoint.loading import BadCheckpoint, load_file
from mmstable.errors import BundleError
from mmstable.files import read_bounded
from mmstable.forensics.bundle import (
    CONFIG,
    INDEX,
    MODEL,
    SCHEMA,
    STEP,
    VERDICT,
    Bundle,
    BundleIndex,
)
from mmstable.forensics.plain_batch import unpack
from mmstable.forensics.step_setup import StepSetup
from mmstable.run_state.rng_check import check_rng

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
