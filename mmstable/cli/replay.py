"""``mmstable replay``: do the bad step of a fault again."""

from __future__ import annotations

import argparse
import bdb
import math
import pdb
import sys
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

import mmstable.cli.command as cli
from mmstable.errors import EXIT_NOT_REPRODUCED, BundleError, CheckpointError
from mmstable.messages import N_, _, printable

if TYPE_CHECKING:
    from rich.tree import Tree
    from torch import Tensor
    from torch.nn import Module

    from mmstable.forensics.bundle import Bundle
    from mmstable.forensics.find_cause import Finding
    from mmstable.forensics.frames import ModuleRanges, Place
    from mmstable.forensics.replay import StepInputs
    from mmstable.forensics.trace import Origin

_MOST_NAMED = 5
# How many modules to show before and after the one that leads to the fault.
_NEIGHBOURS = 3
_PASSES = {'forward': N_('forward'), 'backward': N_('backward')}


def replay(args: argparse.Namespace) -> int:
    """Do the step of a bundle again, and return the exit code."""
    from mmstable.batch import batch_size
    from mmstable.events import Fault
    from mmstable.events.records import Verdict
    from mmstable.forensics.bundle import read_bundle
    from mmstable.forensics.find_cause import CauseFinder

    bundle = read_bundle(args.bundle)
    index = bundle.index
    if bundle.batch is None:
        text = N_('it has no batch to do the step with ({notes:; })')
        raise BundleError(args.bundle, _(text, notes=index.notes))
    size = batch_size(bundle.batch)
    for one in args.sample or []:
        if one >= size:
            raise cli.usage_error(
                '--sample {index}: the batch has {size:sample|samples}, '
                'counted from 0.',
                index=one,
                size=size,
            )
    cli.show(*_introduction(bundle))
    model = _build_model(bundle, args)
    is_crash = _fault(bundle.verdict) is Fault.CRASH
    _load_weights(bundle, model, args, needed=not is_crash)
    inputs = _inputs_of(bundle, model, args)
    if is_crash:
        return _replay_crash(bundle, inputs, args)
    finding = CauseFinder([inputs], index.wrapper or None, math.inf).run()
    if args.sample is not None:
        # Samples have the indices that they have in the whole batch.
        found = finding.samples
        indices = tuple(args.sample[one] for one in found.indices)
        finding.samples = replace(found, indices=indices)
    cli.show(*_result(bundle, model, finding, args))
    if finding.verdict is Verdict.NOT_EXAMINED:
        return 1
    _show(bundle, inputs, finding)
    if finding.culprit is None:
        return EXIT_NOT_REPRODUCED
    if args.pdb:
        _debug(inputs, finding.culprit)
    return 0


def _replay_crash(
    bundle: Bundle, inputs: StepInputs, args: argparse.Namespace
) -> int:
    """Run a step that has raised an error again, in float32."""
    from mmstable.events import Fault
    from mmstable.events.records import FaultExplained, Verdict
    from mmstable.forensics.bundle import write_verdict
    from mmstable.forensics.crash import CrashFinder
    from mmstable.forensics.describe import describe

    finder = CrashFinder(inputs, math.inf, args.dtype or 'float32')
    finding = finder.run()
    if finding.verdict is Verdict.NOT_EXAMINED:
        cli.tell(
            'the step cannot be run here: {reason}', reason=finding.reason
        )
        return 1
    if finding.culprit is None:
        finding.message = _known(bundle, 'text').partition('\n')[0]
    iteration, kind = bundle.index.iteration, type(inputs.model).__name__
    lines = describe(finding, iteration, Fault.CRASH, kind)
    cli.show(*lines)
    if args.write:
        found = FaultExplained.now(
            iteration,
            fault=Fault.CRASH,
            text='\n'.join(lines),
            seconds=round(finder.clock.seconds, 3),
            bundle=str(args.bundle),
            **finding.facts(),
        )
        write_verdict(Path(args.bundle), found)
    return EXIT_NOT_REPRODUCED if finding.culprit is None else 0


def _build_model(bundle: Bundle, args: argparse.Namespace) -> Module:
    """Build the model as the runner would, from the config to be run."""
    from mmstable.check.config_tree import walk
    from mmstable.cli.config import open_config
    from mmstable.cli.mistakes import build_model, explained
    from mmstable.forensics.bundle import CONFIG
    from mmstable.optim.fp32_modules import Fp32Modules

    own = str(Path(args.bundle, CONFIG))
    path = own if args.trust_config else args.config
    if path is None:
        raise cli.usage_error(
            'a bundle is data, and none of it is run. Name the config '
            'that builds the model with --config FILE; or, if you trust '
            "it, use '{path}' with --trust-config.",
            path=own,
        )
    cfg = open_config(path)
    failed = N_('the model cannot be built: {error}')
    model = build_model(cfg, failed)
    # Leave modules out of autocast as the wrappers did.
    for __, node in walk(cfg.get('optim_wrapper')):
        if node.get('fp32_modules'):
            with explained(failed):
                Fp32Modules(node['fp32_modules']).install(model, 'cpu')
    return model.train()


def _load_weights(
    bundle: Bundle, model: Module, args: argparse.Namespace, needed: bool
) -> None:
    """Give the model the weights of the fault, or those of a checkpoint."""
    path, sha256 = args.checkpoint, None
    if path is None and bundle.model_state is not None:
        missing = bundle.load_into(model)
        if missing:
            raise cli.usage_error(
                'the config builds another model than the one of the '
                'bundle, which has no such {names}.',
                names=missing[:_MOST_NAMED],
            )
        return
    if path is None:
        path = bundle.index.checkpoint
        sha256 = bundle.index.checkpoint_sha256 or None
    if path is not None:
        _load_checkpoint(bundle, model, path, sha256)
    elif needed:
        # An index out of range is one with any weights.
        raise cli.usage_error(
            'the bundle has no weights and names no checkpoint; name one '
            'with --checkpoint FILE.'
        )


def _load_checkpoint(
    bundle: Bundle, model: Module, path: str, sha256: str | None
) -> None:
    from torch import Tensor

    from mmstable.checkpoint.loading import load_file, no_dict

    state = content = load_file(path, sha256=sha256)
    if isinstance(content, dict):
        state = content.get('state_dict', content)
    if not isinstance(state, dict):
        raise no_dict(path, state)
    tensors = {k: v for k, v in state.items() if isinstance(v, Tensor)}
    missing = replace(bundle, model_state=tensors).load_into(model)
    # Buffers that are not saved stay as they were built.
    missing = [name for name in missing if name in model.state_dict()]
    if missing:
        text = N_("'{path}' does not fit the model: it has no such {names}.")
        names = missing[:_MOST_NAMED]
        raise CheckpointError(_(text, path=path, names=names))


def module_tree(
    model: Module, ranges: ModuleRanges, focus: str, mark: str
) -> Tree:
    """The path to a module, with the neighbours on the way.

    Args:
        model (Module): The model.
        ranges (ModuleRanges): What its modules have computed.
        focus (str): The name of the module; '' for the model itself.
        mark (str): What to say of that one; '' for nothing.
    """
    from rich.text import Text
    from rich.tree import Tree

    modules = dict(model.named_modules())
    if focus not in modules:
        focus, mark = '', ''

    def line(name: str) -> Text:
        spreads = ranges.below(name)
        values = [_(_PASSES[k]) + f' {one}' for k, one in spreads.items()]
        label = name.rpartition('.')[2]
        text = (f'{label}: ' if label else '') + type(modules[name]).__name__
        text += '  ' + '  '.join(values or [_('not reached')])
        if name == focus and mark:
            text += f'  <- {mark}'
        is_bad = any(one.bad_share for one in spreads.values())
        return Text(printable(text), 'bold red' if is_bad else '')

    def grow(name: str, tree: Tree) -> Tree:
        """Add the children of a module that leads to the focus."""
        start = f'{name}.' if name else ''
        if not f'{focus}.'.startswith(start):
            return tree
        names = [start + one for one, __ in modules[name].named_children()]
        # A module that is used twice is known by its first name.
        names = [one for one in names if one in modules]
        on_way = [f'{focus}.'.startswith(f'{one}.') for one in names]
        middle = on_way.index(True) if any(on_way) else 0
        first = max(0, middle - _NEIGHBOURS)
        last = middle + _NEIGHBOURS + 1
        more = N_('({count} more)')
        if first > 0:
            tree.add(_(more, count=first))
        for one in names[first:last]:
            grow(one, tree.add(line(one)))
        if len(names) > last:
            tree.add(_(more, count=len(names) - last))
        return tree

    return grow('', Tree(line('')))


class BreakAtOrigin:
    """Opens the debugger once, in the frame of the line to blame.

    Values can be looked at there; stepping on is not possible, because the
    line is still running.

    Args:
        culprit (Origin): What to wait for: an operation, or the first use
            of a tensor that was bad before.
    """

    def __init__(self, culprit: Origin) -> None:
        self._culprit = culprit
        self._has_stopped = False

    def on_origin(self, origin: Origin) -> None:
        """Stop, if it is the operation to blame."""
        if origin.identity == self._culprit.identity:
            self._stop(origin)

    def watch(self, phase: str, op: str, place: Place, output: Tensor) -> None:
        """Stop, if a tensor is used here that was bad before."""
        culprit = self._culprit
        if culprit.source and place == culprit.place:
            self._stop(culprit)

    def _stop(self, origin: Origin) -> None:
        if self._has_stopped:
            return
        self._has_stopped = True
        print(printable(origin, 4000))
        # The frame that is at the innermost line of the place.
        frame: FrameType | None = sys._getframe()
        line = list(origin.place.lines[:1])
        while frame and [(frame.f_code.co_filename, frame.f_lineno)] != line:
            frame = frame.f_back
        if frame is None:
            print(
                _(
                    'This is a derivative: no line of the model is running. '
                    '`p origin` shows what is known.'
                )
            )
            frame = sys._getframe()
        debugger = pdb.Pdb(nosigint=True)
        debugger.reset()
        debugger.interaction(frame, None)
        if debugger.quitting:
            raise bdb.BdbQuit


def _introduction(bundle: Bundle) -> Iterator[str]:
    """What the run said, and what is different here."""
    from mmstable.events.log import versions

    for line in _known(bundle, 'text').splitlines():
        yield _('in the run: {line}', line=line)
    here = versions()
    other = [
        f'{name} {version} -> {here[name]}'
        for name, version in bundle.index.versions.items()
        if here.get(name, version) != version
    ]
    if other:
        yield _('other versions here: {versions}', versions=other)
    for note in bundle.index.notes:
        yield _('note: {note}', note=note)


def _inputs_of(
    bundle: Bundle, model: Module, args: argparse.Namespace
) -> StepInputs:
    import torch

    from mmstable.optim.wrapper import require_autocast

    inputs = bundle.inputs(model)
    if args.dtype is not None:
        dtype = None if args.dtype == 'float32' else args.dtype
        setups = inputs.setups.items()
        changed = {name: replace(one, dtype=dtype) for name, one in setups}
        inputs = replace(inputs, setups=changed)
    if any(one.dtype == 'float16' for one in inputs.setups.values()):
        require_autocast('cpu', torch.float16)
    return inputs if args.sample is None else inputs.only(args.sample)


def _result(
    bundle: Bundle, model: Module, finding: Finding, args: argparse.Namespace
) -> Iterator[str]:
    """What came out of the step."""
    from mmstable.events.records import Verdict
    from mmstable.forensics.describe import describe

    index, culprit = bundle.index, finding.culprit
    if finding.verdict is Verdict.NOT_REPRODUCED:
        given = [('sample', one) for one in args.sample or []]
        given += [(key, getattr(args, key)) for key in ('dtype', 'checkpoint')]
        changes = [f'--{key} {one}' for key, one in given if one is not None]
        text = N_('The step is finite with {changes}; in the run it was not.')
        if not changes:
            text = N_(
                'The step is finite here: the same batch, weights and '
                'random numbers give no NaN or Inf on this machine. '
                'Compare the versions, the device and the precision.'
            )
        yield _(text, changes=changes)
        return
    setup = index.setups.get(index.wrapper)
    yield from describe(
        finding,
        index.iteration,
        _fault(bundle.verdict),
        type(model).__name__,
        loss_scale=1.0 if setup is None else setup.loss_scale,
    )
    if culprit is None:
        return
    was = _known(bundle, 'op') or _known(bundle, 'name')
    now, module = culprit.op or culprit.name, _known(bundle, 'module')
    if was and (was, module) != (now, culprit.place.module or ''):
        yield _(
            'This is another fault than in the run, where it began in {was}.',
            was=f'{was} ({module})',
        )


def _show(bundle: Bundle, inputs: StepInputs, finding: Finding) -> None:
    """The tree of modules, and the chain."""
    from mmstable.forensics.frames import ModuleRanges
    from mmstable.forensics.replay import replay_step
    from mmstable.forensics.trace import OriginTracer

    ranges = ModuleRanges()
    replay_step(
        inputs,
        make_mode=lambda model, batch: OriginTracer(
            model, batch, watch=ranges.note
        ),
    )
    culprit, focus, mark = finding.culprit, _known(bundle, 'module'), ''
    if culprit is not None:
        focus = culprit.place.module or ''
        mark = _('{kind} begins here', kind=culprit.kind)
    cli.show('', module_tree(inputs.model, ranges, focus, mark))
    if finding.chain:
        cli.show('', _('From there to the loss or the gradient:'))
    cli.show(*(f'{n}. {one}' for n, one in enumerate(finding.chain, 1)))


def _debug(inputs: StepInputs, culprit: Origin) -> None:
    from mmstable.batch import batch_size
    from mmstable.forensics.replay import replay_step
    from mmstable.forensics.trace import OriginTracer

    size, stop = batch_size(inputs.batch), BreakAtOrigin(culprit)
    try:
        replay_step(
            inputs,
            make_mode=lambda model, batch: OriginTracer(
                model, batch, size, stop.watch, stop.on_origin
            ),
        )
    except bdb.BdbQuit:
        return


def _known(bundle: Bundle, name: str) -> str:
    """A text of the verdict, which may hold anything."""
    value = bundle.verdict.get(name)
    return value if isinstance(value, str) else ''


def _fault(verdict: Mapping[str, Any]) -> Any:
    from mmstable.events import Fault

    try:
        return Fault(verdict.get('fault'))
    except ValueError:
        return Fault.NAN_LOSS


COMMAND = cli.Command(
    replay,
    (
        cli.option(
            'bundle', 'folder, as stability/faults/iter_N', metavar='BUNDLE'
        ),
        (
            cli.option(
                '--config', 'the config that builds the model', metavar='FILE'
            ),
            cli.flag(
                '--trust-config',
                'use the config in the bundle, which is code: for '
                'bundles of your own',
            ),
        ),
        cli.option(
            '--checkpoint',
            'use these weights: does it happen there, too?',
            metavar='FILE',
        ),
        cli.option(
            '--dtype',
            'what to compute in; as in the run by default',
            choices=['float32', 'bfloat16', 'float16'],
        ),
        cli.number(
            '--sample',
            0,
            'use only this sample of the batch, counted from 0; may be '
            'given several times',
            action='append',
            metavar='I',
        ),
        cli.flag(
            '--write', 'write what is found about an error into the bundle'
        ),
        cli.flag('--pdb', 'stop in the debugger where the bad value is born'),
    ),
    'Do the training step of a fault again, on the CPU of this machine, '
    'and show where its first bad value comes from. The bundle is read '
    'as data; only the config that you name, or trust, is run. Exit '
    'codes: 0 it happens again, {not_again} it does not, 3 the bundle or '
    'checkpoint is damaged or something else, 2 another mistake, 1 the '
    'step cannot be done again.',
    {'not_again': EXIT_NOT_REPRODUCED},
)
