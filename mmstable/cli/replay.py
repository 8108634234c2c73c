"""``mmstable replay``: from a bundle to what went wrong in it."""

from __future__ import annotations

import argparse
import bdb
import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
from torch.nn import Module

from mmstable.batches import batch_size
from mmstable.cli.command import LONGEST_LINE
from mmstable.cli.commands.replay import EXIT_NOT_REPRODUCED
from mmstable.cli.module_tree import module_tree, print_tree
from mmstable.cli.replay_model import build_model, load_weights
from mmstable.cli.stop_at_birth import StopAtBirth
from mmstable.errors import BundleError, UsageError
from mmstable.events import Fault
from mmstable.events.number_records import Verdict
from mmstable.events.run_header import versions
from mmstable.forensics.birth_mode import BirthMode
from mmstable.forensics.bundle import Bundle
from mmstable.forensics.bundle_reader import read_bundle
from mmstable.forensics.finding import Finding
from mmstable.forensics.finding_text import describe
from mmstable.forensics.investigate import Investigation
from mmstable.forensics.module_ranges import ModuleRanges
from mmstable.forensics.replay import StepScene, replay_step
from mmstable.messages import _
from mmstable.messages.printable import printable
from mmstable.optim.half_precision import require_autocast


def replay(args: argparse.Namespace) -> int:
    """Do the step of a bundle again, and return the exit code."""
    bundle = read_bundle(args.bundle)
    if bundle.batch is None:
        raise BundleError(
            args.bundle,
            _(
                'it has no batch to do the step with ({notes:; })',
                notes=bundle.index.notes,
            ),
        )
    _check_samples(bundle, args.sample)
    _introduce(bundle)
    model = build_model(bundle, args)
    load_weights(bundle, model, args)
    scene = _scene(bundle, model, args)
    wrapper = bundle.index.wrapper or None
    finding = Investigation([scene], wrapper, math.inf).run()
    if args.sample is not None:
        _count_as_before(finding, args.sample)
    _tell(bundle, model, finding, _changes(args))
    if finding.verdict is Verdict.NOT_EXAMINED:
        return 1
    _show(bundle, scene, finding)
    if finding.culprit is None:
        return EXIT_NOT_REPRODUCED
    if args.pdb:
        _debug(scene, StopAtBirth(finding.culprit))
    return 0


def _print(text: str) -> None:
    print(printable(text, LONGEST_LINE))


def _introduce(bundle: Bundle) -> None:
    """What the run said, and what is different here."""
    index = bundle.index
    told = _known(bundle, 'text')
    for line in told.splitlines():
        _print(_('in the run: {line}', line=line))
    here = versions()
    other = [
        f'{name} {version} -> {here[name]}'
        for name, version in index.versions.items()
        if name in here and here[name] != version
    ]
    if other:
        _print(_('other versions here: {versions}', versions=other))
    for note in index.notes:
        _print(_('note: {note}', note=note))


def _check_samples(bundle: Bundle, samples: list[int] | None) -> None:
    size = batch_size(bundle.batch)
    for one in samples or []:
        if one >= size:
            raise UsageError(
                _(
                    '--sample {index}: the batch has {size:sample|samples}, '
                    'counted from 0.',
                    index=one,
                    size=size,
                )
            )


def _scene(
    bundle: Bundle, model: Module, args: argparse.Namespace
) -> StepScene:
    scene = bundle.scene(model)
    if args.dtype is not None:
        dtype = None if args.dtype == 'float32' else args.dtype
        setups = {
            name: replace(one, dtype=dtype)
            for name, one in scene.setups.items()
        }
        scene = replace(scene, setups=setups)
    for one in scene.setups.values():
        if one.dtype == 'float16':
            require_autocast('cpu', torch.float16)
    return scene if args.sample is None else scene.only(args.sample)


def _count_as_before(finding: Finding, samples: list[int]) -> None:
    """Give samples the indices that they have in the whole batch."""
    found = finding.samples
    indices = tuple(samples[index] for index in found.indices)
    finding.samples = replace(found, indices=indices)


def _changes(args: argparse.Namespace) -> list[str]:
    """What the user wants to be otherwise than in the run."""
    found = [f'--sample {one}' for one in args.sample or []]
    if args.dtype is not None:
        found.append(f'--dtype {args.dtype}')
    if args.checkpoint is not None:
        found.append(f'--checkpoint {args.checkpoint}')
    return found


def _tell(
    bundle: Bundle, model: Module, finding: Finding, changes: list[str]
) -> None:
    index = bundle.index
    if finding.verdict is Verdict.NOT_REPRODUCED:
        if changes:
            _print(
                _(
                    'The step is finite with {changes}; in the run it was '
                    'not.',
                    changes=changes,
                )
            )
        else:
            _print(
                _(
                    'The step is finite here: the same batch, weights and '
                    'random numbers give no NaN or Inf on this machine. '
                    'Compare the versions, the device and the precision.'
                )
            )
        return
    setup = index.setups.get(index.wrapper)
    lines = describe(
        finding,
        index.iteration,
        _fault(bundle.verdict),
        type(model).__name__,
        loss_scale=1.0 if setup is None else setup.loss_scale,
    )
    for line in lines:
        _print(line)
    culprit = finding.culprit
    if culprit is None:
        return
    was = _known(bundle, 'op') or _known(bundle, 'name')
    now = getattr(culprit, 'op', '') or getattr(culprit, 'name', '')
    where = _known(bundle, 'module'), culprit.place.module or ''
    if was and (was != now or where[0] != where[1]):
        _print(
            _(
                'This is another fault than in the run, where it began in '
                '{was}.',
                was=f'{was} ({where[0]})',
            )
        )


def _show(bundle: Bundle, scene: StepScene, finding: Finding) -> None:
    """The tree of modules, and the chain."""
    ranges = ModuleRanges()
    replay_step(
        scene,
        make_mode=lambda model, batch: BirthMode(
            model, batch, watch=ranges.note
        ),
    )
    culprit, focus, mark = finding.culprit, _known(bundle, 'module'), ''
    if culprit is not None:
        focus = culprit.place.module or ''
        mark = _('{kind} begins here', kind=culprit.kind)
    print()
    print_tree(module_tree(scene.model, ranges, focus, mark))
    if finding.chain:
        print('\n' + _('From there to the loss or the gradient:'))
    for number, one in enumerate(finding.chain, 1):
        _print(f'{number}. {one}')


def _debug(scene: StepScene, stop: StopAtBirth) -> None:
    size = batch_size(scene.batch)
    try:
        replay_step(
            scene,
            make_mode=lambda model, batch: BirthMode(
                model, batch, size, stop.watch, stop.on_birth
            ),
        )
    except bdb.BdbQuit:
        return


def _known(bundle: Bundle, name: str) -> str:
    """A text of the verdict, which may hold anything."""
    value = bundle.verdict.get(name)
    return value if isinstance(value, str) else ''


def _fault(verdict: Mapping[str, Any]) -> Fault:
    try:
        return Fault(verdict.get('fault'))
    except ValueError:
        return Fault.NAN_LOSS
