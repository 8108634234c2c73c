"""``mmstable profile``: measure where the time of an iteration goes."""

from __future__ import annotations

import argparse
import os
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import mmstable.cli.command as cli
from mmstable.dist.launch import rank_of
from mmstable.errors import MMStableError
from mmstable.messages import N_, _

if TYPE_CHECKING:
    from mmengine.config import Config
    from mmengine.hooks import Hook
    from mmengine.runner import Runner

    from mmstable.hooks import IterProfileHook
    from mmstable.profile.causes import Cause, Sample

# The most rows of hooks and of modules, and the least share of a row.
_MOST, _LEAST = 8, 0.005
# Iterations of a trace, which has a line for every operation.
_TRACED = 3
# An interval so long that there is no second sample.
_ONCE = 10**9


def profile(args: argparse.Namespace) -> int:
    """Measure a few iterations, and return the exit code."""
    from mmstable.cli.mistakes import check_work_dir
    from mmstable.events.log import device_of
    from mmstable.hooks import IterProfileHook

    is_first = rank_of(args.launcher) == 0
    cfg = _load(args)
    folder = Path(cfg.pop('work_dir'))
    is_new = not folder.exists()
    check_work_dir(str(folder))
    cli.check_folder_of(args.json)
    hook = IterProfileHook(
        interval=_ONCE,
        iterations=args.iters,
        begin=args.warmup,
        depth=args.depth,
    )
    trace = folder / 'trace.json'
    cli.tell(
        'training {warmup} iterations to warm up, {iters} to measure '
        'and {traced} to trace, in a temporary folder',
        warmup=args.warmup,
        iters=args.iters,
        traced=_TRACED,
    )
    try:
        runner = _train(cfg, hook, trace if is_first else None)
    except BaseException:
        if is_new:
            # Empty, or not ours to remove.
            with suppress(OSError):
                folder.rmdir()
        raise
    sample = hook.sample
    if sample is None:
        raise cli.usage_error(
            'training ended before all iterations were measured; is '
            'there data, and does the train loop train?'
        )
    if not is_first:
        return 0
    synchronizes = device_of(runner.model).type != 'cpu'
    cli.show(_table(sample), *_lines(sample, hook.causes, synchronizes, trace))
    if args.json is not None:
        cli.write_json(args.json, _as_dict(sample, hook.causes))
    return 0


def _load(args: argparse.Namespace) -> Config:
    from mmstable.cli import config as edits
    from mmstable.protection import drop_absent_hooks

    cfg = edits.open_config(args.config, args.cfg_options)
    edits.set_work_dir(cfg, None, args.config)
    cfg.work_dir = args.work_dir or os.path.join(cfg.work_dir, 'profile')
    cfg.launcher = args.launcher
    drop_absent_hooks(cfg)
    edits.disable_validation(cfg)
    cfg.test_cfg = cfg.test_dataloader = cfg.test_evaluator = None
    loop = cfg.get('train_cfg')
    if not isinstance(loop, dict):
        raise cli.usage_error(
            'the config has no `train_cfg`, so there is no training to measure'
        )
    # Long enough; the run ends when all is measured.
    for key in ('max_iters', 'max_epochs'):
        if key in loop:
            least = args.warmup + args.iters + _TRACED + 1
            loop[key] = max(int(loop[key]), least)
    _leave_nothing_behind(cfg)
    return cfg


def _leave_nothing_behind(cfg: Config) -> None:
    """Remove what loads or saves checkpoints, or writes to dashboards."""
    from mmengine.hooks import CheckpointHook
    from mmengine.registry import HOOKS

    from mmstable.hooks import EmergencyCheckpointHook, IterProfileHook

    # They write checkpoints, or measure as well.
    removed = (CheckpointHook, EmergencyCheckpointHook, IterProfileHook)

    def is_kept(hook: Any) -> bool:
        kind = hook.get('type') if isinstance(hook, dict) else type(hook)
        if isinstance(kind, str):
            # An unknown name is reported when the run is built.
            kind = HOOKS.get(kind)
        return not (isinstance(kind, type) and issubclass(kind, removed))

    cfg.load_from, cfg.resume = None, False
    cfg.log_level = 'ERROR'
    cfg.visualizer = dict(type='Visualizer', vis_backends=[])
    hooks = (cfg.get('default_hooks') or {}).items()
    # mmengine adds one for checkpoints where there is none.
    cfg.default_hooks = {
        **{name: hook for name, hook in hooks if is_kept(hook)},
        'checkpoint': None,
    }
    cfg.custom_hooks = list(filter(is_kept, cfg.get('custom_hooks') or []))


def _train(cfg: Config, hook: IterProfileHook, trace: Path | None) -> Runner:
    from mmstable.cli.mistakes import build_runner, explained
    from mmstable.dist.collectives import join_ranks

    note = join_ranks(cfg)
    if note is not None:
        cli.say(note)
    with tempfile.TemporaryDirectory(prefix='mmstable_profile_') as scratch:
        cfg.work_dir = scratch
        with explained(cfg=cfg._cfg_dict), suppress(Measured):
            runner = build_runner(cfg)
            runner.register_hook(hook)
            runner.register_hook(_trace_hook(hook, trace))
            runner.train()
    return runner


@contextmanager
def _without_stderr() -> Iterator[None]:
    """Drop the lines that kineto prints when a trace begins and ends."""
    saved, sink = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    os.dup2(sink, 2)
    try:
        yield
    finally:
        os.dup2(saved, 2)
        os.close(saved)
        os.close(sink)


class Measured(MMStableError):
    """All was measured: training can end, in whatever loop."""


def _trace_hook(hook: IterProfileHook, path: Path | None) -> Hook:
    """A hook that traces iterations when ``hook`` is done, and ends training.

    Args:
        hook (IterProfileHook): Takes the sample.
        path (Path, optional): Where the trace goes; None for no trace, as on
            all ranks but the first one.
    """
    from mmengine.hooks import Hook
    from torch.profiler import ProfilerActivity, profile

    from mmstable.events.log import device_of
    from mmstable.profile.measure import IterationSample

    class TraceHook(Hook):
        # After the other one, which has the same priority.
        priority = 'LOWEST'
        count = 0
        stack = ExitStack()

        def after_train_iter(self, runner: Runner, **kwargs: Any) -> None:
            """Begin, or end."""
            if hook.sample is None:
                return
            if self.count == 0 and path is not None:
                self.start(runner, path)
            self.count += 1
            if self.count > _TRACED:
                with _without_stderr():
                    self.stack.close()
                raise Measured('')

        def on_exception(self, runner: Runner, **kwargs: Any) -> None:
            """End, with what there is."""
            self.stack.close()

        def start(self, runner: Runner, path: Path) -> None:
            kinds = [ProfilerActivity.CPU]
            if device_of(runner.model).type == 'cuda':
                kinds.append(ProfilerActivity.CUDA)
            profiler = profile(activities=kinds)
            self.stack.callback(profiler.export_chrome_trace, str(path))
            with _without_stderr():
                self.stack.enter_context(profiler)
            sample = IterationSample(runner, self, 3, annotates=True)
            self.stack.callback(sample.stop)

    return TraceHook()


def _as_dict(sample: Sample, causes: Sequence[Cause]) -> dict[str, Any]:
    """The profile for programs, in seconds."""
    from mmstable.profile.causes import describe_causes

    return {
        **asdict(sample.profile),
        'workers': sample.workers,
        'cores': sample.cores,
        'loading': sample.loading.state,
        'gpu_busy': sample.gpu_busy,
        'ranks': [one._asdict() for one in sample.ranks],
        'causes': [cause._asdict() for cause in causes],
        'verdict': describe_causes(sample, causes),
    }


def _table(sample: Sample) -> Any:
    from mmstable.profile.causes import PHASES, percent

    profile = sample.profile
    title = _(
        'an iteration: {milliseconds:.1f} ms, mean of {count}',
        milliseconds=1e3 * profile.seconds,
        count=profile.iterations,
    )
    rows: list[Sequence[str] | None] = []
    phases = {_(PHASES[k]): v for k, v in profile.phases.items()}
    for text, parts, least in (
        ('{name}', phases, 0.0),
        (N_('hook {name}'), profile.hooks, _LEAST),
        (N_('forward of {name}'), profile.modules, _LEAST),
    ):
        for name, seconds in islice(parts.items(), _MOST):
            share = profile.share(seconds)
            if share >= least:
                ms = f'{1e3 * seconds:.1f}'
                rows.append([_(text, name=name), ms, percent(share)])
        rows.append(None)
    return cli.table(rows, [_('part'), _('ms'), _('share')], title, right=1)


def _lines(
    sample: Sample, causes: Sequence[Cause], synchronizes: bool, trace: Path
) -> Iterator[str]:
    from mmstable.profile.causes import describe_causes, percent

    yield _(
        'num_workers={workers}, {cores:core|cores} for this process.',
        workers=sample.workers,
        cores=sample.cores,
    )
    if sample.gpu_busy is not None:
        share = percent(sample.gpu_busy / 100)
        yield _('{name} {share}', name='GPU', share=share)
    if synchronizes:
        yield _(
            'The device was waited for at every boundary, so that times are '
            'put down to who causes them; without that, iterations are a bit '
            'faster.'
        )
    yield _(
        'Chrome trace: {path} (chrome://tracing or ui.perfetto.dev)',
        path=trace,
    )
    yield from describe_causes(sample, causes)


COMMAND = cli.Command(
    profile,
    (
        cli.CONFIG,
        cli.number(
            '--iters',
            1,
            'iterations to measure (default: {default})',
            default=30,
        ),
        cli.number(
            '--warmup',
            1,
            'iterations before that (default: {default})',
            default=10,
        ),
        cli.number(
            '--depth',
            1,
            "how deep to look into the model, as 2 for 'backbone.layer3' "
            '(default: {default})',
            default=2,
        ),
        cli.option(
            '--work-dir',
            'where the trace goes (default: profile/ below the work_dir '
            'of the config)',
            metavar='FOLDER',
        ),
        cli.JSON_FILE,
        cli.CFG_OPTIONS,
        *cli.LAUNCHER,
    ),
    'Train a few iterations in a temporary folder, and tell what they '
    'spend their time on, what makes them slow, and what to change. No '
    'checkpoint is read or written. A Chrome trace is left for '
    'chrome://tracing or ui.perfetto.dev.',
)
