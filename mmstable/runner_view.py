"""What does this runner hold?  The one reader of mmengine's private parts.

Everything here is a plain question about a runner, a wrapper, a scheduler or
a hook. Where mmengine has no public way to ask, its private attribute is read
here and nowhere else, so that a new release of mmengine breaks one file.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from operator import attrgetter
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from mmengine.hooks import EMAHook, Hook
from mmengine.model import is_model_wrapper
from mmengine.optim import OptimWrapperDict
from mmengine.runner import BaseLoop, Runner, loops
from torch import device
from torch.nn import Module
from torch.optim import Optimizer

Some = TypeVar('Some', bound=Hook)


def saved_model(runner: Runner) -> Module:
    """The module whose ``state_dict()`` is in a checkpoint."""
    model = runner.model
    return model.module if is_model_wrapper(model) else model


def device_of(model: Module) -> device:
    """Where a model is."""
    parameter = next(model.parameters(), None)
    return device('cpu') if parameter is None else parameter.device


def find_hook(runner: Runner, kind: type[Some]) -> Some | None:
    """The first hook of a class, if there is one."""
    return next((one for one in runner.hooks if isinstance(one, kind)), None)


def saved_buffers(runner: Runner) -> set[str]:
    """Names of the buffers that are in a checkpoint."""
    model = saved_model(runner)
    return {name for name, _ in model.named_buffers()} & set(
        model.state_dict()
    )


def wrappers(runner: Runner) -> dict[str, Any]:
    """All optimizer wrappers by name; a single one is 'optim_wrapper'.

    None if an engine, such as DeepSpeed's, owns the optimizer.
    """
    found = runner.optim_wrapper
    if isinstance(found, OptimWrapperDict):
        return dict(found.items())
    return {'optim_wrapper': found} if hasattr(found, 'should_update') else {}


def has_many_wrappers(runner: Runner) -> bool:
    """Whether the config names its wrappers, as for a GAN."""
    return isinstance(runner.optim_wrapper, OptimWrapperDict)


# Takes the losses from the outputs of a validation; not in all releases.
take_losses = getattr(loops, '_update_losses', None)

# Backward passes that a wrapper has counted.
inner_count = attrgetter('_inner_count')


def set_inner_count(wrapper: Any, count: int) -> None:
    """Set the backward passes that a wrapper has counted."""
    wrapper._inner_count = count


def skip_iteration(wrapper: Any) -> None:
    """Count an iteration without gradients, for a wrapper of mmengine's."""
    wrapper._inner_count += 1
    if wrapper.should_update():
        params = (p for group in wrapper.param_groups for p in group['params'])
        if any(param.grad is not None for param in params):
            wrapper.step()
        wrapper.zero_grad()


def accumulative_counts(wrapper: Any) -> int:
    """Iterations that make one step of a wrapper."""
    return getattr(wrapper, '_accumulative_counts', 1)


def window_is_open(runner: Runner, done: int | None = None) -> bool:
    """Whether gradients of an unfinished accumulation window are kept.

    Args:
        runner (Runner): The runner.
        done (int, optional): Iterations done, if somebody waits for the end
            of all windows. Those of several wrappers may never end together:
            then they count as closed once in as many iterations as all of
            their lengths divide. Defaults to None.
    """
    held = wrappers(runner).values()
    if all(one.should_update() for one in held):
        return False
    return done is None or done % math.lcm(*map(accumulative_counts, held)) > 0


def resolve_steps(runner: Runner) -> None:
    """Wait for the verdict on the newest step of every wrapper."""
    for wrapper in wrappers(runner).values():
        getattr(wrapper, 'last_step', None)


def optimizers(runner: Runner) -> dict[str, Optimizer]:
    """The optimizers that hold the state, by the name of their wrapper."""
    return {
        name: _holder_of_state(wrapper.optimizer)
        for name, wrapper in wrappers(runner).items()
    }


def has_sharded_optimizer(runner: Runner) -> bool:
    """Whether ranks share the state of an optimizer among them."""
    held = optimizers(runner)
    return any(
        wrapper.optimizer is not held[name]
        for name, wrapper in wrappers(runner).items()
    )


def param_groups(runner: Runner) -> list[dict[str, Any]]:
    """All groups that schedules change, mmengine's base setting included."""
    return [
        group
        for wrapper in wrappers(runner).values()
        for group in wrapper.param_groups
    ]


def loss_scaler(wrapper: Any) -> Any | None:
    """The loss scaler of a wrapper; None if losses are not scaled."""
    scaler = getattr(wrapper, 'loss_scaler', None)
    return scaler if scaler is not None and scaler.is_enabled() else None


def smallest_loss_scale(wrapper: Any) -> float:
    """What the loss scale of a wrapper can go down to; 1 without one."""
    scaler = loss_scaler(wrapper)
    if scaler is None:
        return 1.0
    policy = getattr(scaler, 'policy', None)
    if policy is None:
        # mmengine sets it to this number after every step.
        return float(getattr(wrapper, '_scale_update_param', None) or 1.0)
    return float(scaler.get_scale() if policy.frozen else policy.min_scale)


def is_compiled(model: Module) -> bool:
    """Whether ``torch.compile`` runs a model, or a part of it."""
    # Plain loops: a large model has thousands of modules.
    for module in model.modules():
        if hasattr(module, '_orig_mod'):
            return True
        for name in ('forward', 'train_step'):
            method = getattr(module, name, None)
            if hasattr(method, '_torchdynamo_orig_callable'):
                return True
    return False


def schedulers(runner: Runner) -> dict[str, list[Any]]:
    """The parameter schedulers, by the name of their wrapper."""
    found = runner.param_schedulers or {}
    if isinstance(found, Mapping):
        return dict(found)
    name = next(iter(wrappers(runner)), 'optim_wrapper')
    return {name: list(found)}


def all_schedulers(runner: Runner) -> list[Any]:
    """The parameter schedulers of all wrappers."""
    return [one for group in schedulers(runner).values() for one in group]


def schedule_position(scheduler: Any) -> int:
    """How many steps a scheduler has made."""
    return scheduler._global_step


def average_hooks(runner: Runner) -> list[EMAHook]:
    """The hooks that keep an average of the weights in ``ema_model``."""
    return [
        hook
        for hook in runner.hooks
        if isinstance(hook, EMAHook) and hasattr(hook, 'ema_model')
    ]


def swap_average(hook: EMAHook) -> None:
    """Exchange the weights of the model and their average."""
    hook._swap_ema_parameters()


def add_hook(runner: Runner, hook: Hook) -> None:
    """Register a hook, also from within a stage of another hook."""
    # The stage under way keeps its own list: if that one grew at the front,
    # the hook that is called right now would be called again.
    runner._hooks = list(runner._hooks)
    runner.register_hook(hook)


def built_train_loop(runner: Runner) -> BaseLoop | None:
    """The train loop, if it is built."""
    # `runner.train_loop` would build it, and the training data with it,
    # although a checkpoint may be loaded for a test.
    loop = runner._train_loop
    return loop if isinstance(loop, BaseLoop) else None


def iterations_done(runner: Runner) -> int:
    """Iterations whose training step is done, right in every stage.

    ``runner.iter`` counts an iteration only after all hooks had their turn.
    """
    loop = built_train_loop(runner)
    if loop is not None and hasattr(loop, 'resume_meta'):
        return loop.resume_meta()['iter']
    return runner.iter


def resume_meta(runner: Runner) -> dict[str, int]:
    """Epoch and iteration of a checkpoint that is saved now."""
    loop = runner.train_loop
    if hasattr(loop, 'resume_meta'):
        return loop.resume_meta()
    # While the model trains, this is after an iteration that the loop does
    # not count yet.
    done = runner.iter + runner.model.training
    return dict(epoch=runner.epoch, iter=done)


def iteration_time(runner: Runner) -> float:
    """Seconds of an iteration lately; 0 if they are not known."""
    times = runner.message_hub.log_scalars.get('train/time')
    return 0.0 if times is None else float(times.mean(20))


def is_resuming(runner: Runner) -> bool:
    """Whether a checkpoint is loaded to resume, not for its weights only."""
    return bool(runner._resume)


def resumed_from(runner: Runner) -> Path | None:
    """The local file that a run was told to resume from, if any."""
    path = runner._load_from
    if not runner._resume or path is None or '://' in str(path):
        return None
    return Path(path)


@contextmanager
def as_resuming(runner: Runner) -> Iterator[None]:
    """Let hooks load a checkpoint as they do when a run is resumed."""
    before, runner._resume = runner._resume, True
    try:
        yield
    finally:
        runner._resume = before


def stability_folder(runner: Runner) -> Path:
    """Where mmstable writes: next to the log of this process."""
    return Path(runner.log_dir, 'stability')


class StartNotes(NamedTuple):
    """What ``mmstable train`` printed before a run.

    Args:
        warnings (tuple[str]): Problems of its config. Defaults to ().
        changes (tuple[str]): What was changed to protect it.
            Defaults to ().
    """

    warnings: tuple[str, ...] = ()
    changes: tuple[str, ...] = ()


def note_start(runner: Runner, notes: StartNotes) -> None:
    """Keep what was printed before there was a log, also in the log file."""
    vars(runner)['start_notes'] = notes
    logger = runner.logger
    for level, lines in zip((logging.WARNING, logging.INFO), notes):
        for line in lines:
            text = f'mmstable: {line}'
            record = logger.makeRecord(
                logger.name, level, '', 0, text, (), None
            )
            for handler in logger.handlers:
                if isinstance(handler, logging.FileHandler):
                    handler.handle(record)


def start_notes(runner: Runner) -> StartNotes:
    """Return what :func:`note_start` kept."""
    return vars(runner).get('start_notes', StartNotes())


def _holder_of_state(optimizer: Optimizer) -> Optimizer:
    # ZeroRedundancyOptimizer has another one inside, which has the state.
    inner = getattr(optimizer, 'optim', None)
    return inner if isinstance(inner, Optimizer) else optimizer
