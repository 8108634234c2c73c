"""Every planted cause, what is true of it, and a real run that meets it."""

from __future__ import annotations

import inspect
import itertools
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from mmengine.config import Config
from mmengine.dataset import DefaultSampler, pseudo_collate
from mmengine.hooks import Hook
from mmengine.optim import OptimWrapperDict
from mmengine.runner import Runner
from mmengine.structures import BaseDataElement
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from mmstable import SafeOptimWrapper
from mmstable.events.records import FaultExplained
from tests.forensics import planted_causes as causes
from tests.forensics import planted_losses as losses
from tests.forensics.planted_patterns import PATTERNS, Pattern

_RUNS = itertools.count()
_FP16 = dict(type='mmstable.SafeAmpOptimWrapper', loss_scale=1.0)
_FP32 = dict(type='mmstable.SafeOptimWrapper')
_BAD = ('loss_bad',)
_ALL = ('loss_main', 'loss_good', 'loss_bad')
Spoil = Callable[[Tensor, BaseDataElement], Any]


@dataclass(frozen=True)
class Case:
    """A planted cause, and the truth about it.

    Args:
        name (str): What it is called.
        model (Callable): Makes the model.
        op (str): The operation; '' if there is none to blame.
        verdict (str): The kind of cause.
        module (str): The innermost module.
        terms (tuple[str]): The terms of the loss.
        samples (tuple[int]): The samples.
        source (str): The tensor that was bad before.
        wrapper (dict): Settings of the optimizer wrapper.
        lr (float): The learning rate.
        flags (tuple[int]): Samples of the data set that have a flag.
        spoil (Callable, optional): Changes the input and data sample of
            these.
        prepare (Callable, optional): Changes the model before the second
            iteration.
        batch_size (int): Samples of a batch.
        together (bool): Whether it takes several samples.
        owner (type, optional): The class with the line to blame.
        line (str): That line, if it is in no class.
        remedy (str): Words of the advice; '' if they are not checked.
    """

    name: str
    model: Callable[[], Any]
    op: str = ''
    verdict: str = 'domain_error'
    module: str = 'head'
    terms: tuple[str, ...] = _BAD
    samples: tuple[int, ...] = (2,)
    source: str = ''
    wrapper: dict[str, Any] = field(
        default_factory=lambda: dict(type='mmstable.SafeOptimWrapper')
    )
    lr: float = 1e-3
    flags: tuple[int, ...] = (6,)
    spoil: Spoil | None = None
    prepare: Callable[[Any], None] | None = None
    batch_size: int = 4
    together: bool = False
    owner: type | None = None
    line: str = ''
    remedy: str = ''

    @property
    def code(self) -> str:
        """The line to blame; '' if there is none."""
        if self.line:
            return self.line
        if not self.op or self.owner is None:
            return ''
        lines = [
            line.strip()
            for cls in reversed(self.owner.__mro__)
            if cls.__module__.startswith('tests.forensics')
            for line in inspect.getsource(cls).splitlines()
            if line.endswith('# cause')
        ]
        return lines[-1]


class Samples(Dataset):
    """Samples with a flag, a weight and a path."""

    def __init__(self, case: Case) -> None:
        self._case = case

    def __len__(self) -> int:
        return 3 * self._case.batch_size

    def __getitem__(self, index: int) -> dict[str, Any]:
        generator = torch.Generator().manual_seed(index)
        inputs = torch.randn(4, generator=generator)
        sample = BaseDataElement(metainfo={'img_path': f'data/{index}.png'})
        flagged = index in self._case.flags
        sample.flag, sample.weight = torch.zeros(1), torch.ones(1)
        if flagged and self._case.spoil is not None:
            self._case.spoil(inputs, sample)
        elif flagged:
            sample.flag = torch.ones(1)
        return {'inputs': inputs, 'data_samples': sample}


class Prepare(Hook):
    """Changes the model before the second iteration."""

    def __init__(self, change: Callable[[Any], None] | None) -> None:
        self._change = change

    def before_train_iter(self, runner, batch_idx, data_batch=None):
        if runner.iter == 1 and self._change is not None:
            self._change(runner.model)


class Findings(Hook):
    """Collects what is explained."""

    def __init__(self) -> None:
        self.found: list[FaultExplained] = []

    def after_event(self, runner, event):
        if isinstance(event, FaultExplained):
            self.found.append(event)


def planted(head: type[causes.Head]) -> Callable[[], Any]:
    """Makes a model with this head."""

    def make() -> Any:
        torch.manual_seed(0)
        return causes.Planted(head())

    return make


def _gan() -> Any:
    torch.manual_seed(0)
    return causes.Gan()


def _set(name: str, value: float) -> Callable[[Any], None]:
    def change(model: Any) -> None:
        tensors = {
            **dict(model.named_parameters()),
            **dict(model.named_buffers()),
        }
        tensors[name].data[0] = value

    return change


def _inf_pixel(inputs: Tensor, sample: BaseDataElement) -> None:
    inputs[1] = float('inf')


def _nan_weight(inputs: Tensor, sample: BaseDataElement) -> None:
    sample.weight = torch.full((1,), float('nan'))


def _case(name: str, head: type[causes.Head], op: str, **truth: Any) -> Case:
    return Case(name, planted(head), op, **{'owner': head, **truth})


_BAD_INPUT = dict(verdict='bad_input', terms=_ALL)
_OVERFLOW = dict(verdict='fp16_overflow', wrapper=_FP16)
CASES = [
    _case('exp, fp16', causes.Exp, 'aten.exp.default', **_OVERFLOW),
    _case('pow, fp16', causes.Pow, 'aten.mul.Tensor', **_OVERFLOW),
    _case(
        'cast of autocast, fp16',
        causes.Cast,
        'aten._to_copy.default',
        module='head.fc',
        **_OVERFLOW,
    ),
    _case(
        'softmax, masked row', causes.MaskedSoftmax, 'aten._softmax.default'
    ),
    _case('log(0)', causes.Log, 'aten.log.default'),
    _case('log(0) in place', causes.InPlace, 'aten.log_.default'),
    _case('ahead of BatchNorm', causes.AheadOfNorm, 'aten.log.default'),
    _case('mask in a buffer', causes.MaskBuffer, 'aten._softmax.default'),
    _case('empty mask', causes.EmptyMask, 'aten.div.Tensor'),
    _case(
        'empty mask of the batch',
        causes.EmptyBatchMask,
        'aten.div.Tensor',
        flags=(4, 5, 6, 7),
        samples=(0, 1, 2, 3),
    ),
    _case('sqrt at 0, backward', causes.Sqrt, 'aten.div.Tensor'),
    _case('norm at 0, backward', causes.Norm, 'aten.pow.Tensor_Scalar'),
    _case('acos beyond 1', causes.AcosBeyond, 'aten.acos.default'),
    _case('acos at 1, backward', causes.AcosEdge, 'aten.rsqrt.default'),
    _case('angle at 0', causes.Angle, 'aten.div.Tensor'),
    _case(
        'one value per channel', causes.BatchStatistics, 'aten.var.correction'
    ),
    _case('variance of one', causes.OneStd, 'aten.std.correction'),
    _case(
        'Inf pixel',
        causes.Plain,
        '',
        module='',
        source='inputs[2]',
        spoil=_inf_pixel,
        **_BAD_INPUT,
    ),
    _case(
        'NaN label weight',
        causes.Plain,
        '',
        module='',
        source='data_samples[2].weight',
        spoil=_nan_weight,
        **{**_BAD_INPUT, 'terms': ('loss_main',)},
    ),
    _case(
        'NaN weight',
        causes.Plain,
        '',
        verdict='bad_weights',
        module='head.fc',
        terms=('loss_good', 'loss_bad'),
        samples=(),
        source='head.fc.weight',
        prepare=_set('head.fc.weight', float('nan')),
    ),
    _case(
        'NaN running statistic',
        causes.FrozenNorm,
        '',
        verdict='bad_weights',
        module='head.norm',
        samples=(),
        source='head.norm.running_var',
        prepare=_set('head.norm.running_var', float('nan')),
    ),
    _case(
        'exploding learning rate',
        causes.Deep,
        'aten.addmm.default',
        verdict='exploding',
        module='head.fc2',
        samples=(0, 1, 2, 3),
        lr=1e16,
    ),
    _case(
        'flaky module',
        causes.Flaky,
        '',
        verdict='not_reproduced',
        module='',
        terms=(),
        samples=(),
    ),
    _case(
        'own autograd function',
        causes.OwnFunction,
        'aten.div.Tensor',
        owner=causes.Ratio,
    ),
    _case('inside a checkpoint', causes.Checkpointed, 'aten.div.Tensor'),
    _case('reentrant checkpoint', causes.CheckpointedOld, 'aten.div.Tensor'),
    _case(
        'one loss of a list',
        causes.ListOfLosses,
        'aten.log.default',
        terms=('loss_aux[1]',),
    ),
    Case(
        'second wrapper of a GAN',
        _gan,
        'aten.log.default',
        module='',
        terms=('loss_disc',),
        owner=causes.Gan,
    ),
    _case('where hides log(0)', causes.Trap, 'aten.div.Tensor'),
    _case(
        'where hides an overflow',
        causes.SavedTrap,
        'aten.exp.default',
        verdict='exploding',
    ),
    _case('Dice', causes.Dice, 'aten.div.Tensor'),
    _case('Lovasz', causes.Lovasz, 'aten.div.Tensor'),
    _case('focal', causes.Focal, 'aten.log.default'),
    _case(
        'all labels ignored', causes.NoTarget, 'aten.nll_loss_forward.default'
    ),
    _case('mean over nothing', causes.EmptyMean, 'aten.mean.default'),
    _case(
        'only together',
        causes.Together,
        'aten.div.Tensor',
        flags=(5, 7),
        samples=(1, 3),
        together=True,
    ),
    _case(
        'table of numpy',
        causes.OutsideTensor,
        '',
        verdict='bad_input',
        samples=(),
        source='',
    ),
    _case('GIoU of empty boxes', losses.Giou, 'aten.div.Tensor'),
    _case('smooth L1, beta 0', losses.SmoothL1, 'aten.div.Tensor'),
    _case('centerness', losses.Centerness, 'aten.sqrt.default'),
    _case('cosine by hand', losses.Cosine, 'aten.div.Tensor'),
    _case('normalize, no epsilon', losses.Normalize, 'aten.div.Tensor'),
    _case(
        'box decoder',
        losses.BoxDecoder,
        'aten.exp.default',
        verdict='exploding',
    ),
    _case('nan_to_num hides log(0)', losses.NanToNum, 'aten.div.Tensor'),
    _case('mean of an empty voxel', losses.ScatterMean, 'aten.div.Tensor'),
    _case('logsumexp, masked row', losses.LogSumExp, 'aten.sub.Tensor'),
    _case('index_put', losses.IndexPut, 'aten.div.Tensor'),
    _case('view divided in place', losses.InPlaceDiv, 'aten.div_.Tensor'),
    _case(
        'own function, forward',
        losses.OwnForward,
        'aten.log.default',
        owner=losses.LogFunction,
    ),
    _case('nested checkpoint', losses.NestedCheckpoint, 'aten.div.Tensor'),
    _case('compiled part', losses.Compiled, 'aten.log.default'),
    _case('one of two origins', losses.TwoBirths, 'aten.div.Tensor'),
    _case('logit(0)', losses.LogitZero, 'aten.logit.default'),
    _case(
        'class weight 0', losses.ClassWeight, 'aten.nll_loss_forward.default'
    ),
    _case('CTC too short', losses.CtcTooShort, 'aten._ctc_loss.Tensor'),
    _case('gradient penalty', losses.GradientPenalty, 'aten.div.Tensor'),
    _case('hook on a gradient', losses.HookedGradient, 'aten.div.Tensor'),
    _case('scripted loss', losses.Scripted, 'aten.log.default'),
    _case('by the random state', losses.RandomDrop, 'aten.div.Tensor'),
    _case('equal eigenvalues', losses.Eigen, 'aten.div_.Tensor'),
    _case('samples in another dim', losses.Transposed, 'aten.div.Tensor'),
    _case('anchors of all samples', losses.Flattened, 'aten.log.default'),
    _case('behind BatchNorm', losses.Coupled, 'aten.div.Tensor'),
    _case('sparse matrix', losses.Sparse, 'aten.div.Tensor'),
    _case('divided by almost 0', losses.AlmostZero, 'aten.div.Tensor'),
    _case('a number that is NaN', losses.NanNumber, 'aten.mul.Tensor'),
    _case(
        'log(0) in bfloat16 only',
        losses.Rounded,
        'aten.log.default',
        wrapper=dict(type='mmstable.SafeAmpOptimWrapper', dtype='bfloat16'),
    ),
    _case(
        'epsilon of 0, fp16',
        losses.SmallEpsilon,
        'aten.log.default',
        verdict='fp16_underflow',
        wrapper=_FP16,
    ),
]

# Runs with nothing wrong, though infinities come and go in them.
INNOCENT = [
    _case('intended masks', causes.Plain, ''),
    _case('atan2 at 0', causes.Atan2, ''),
    _case('masked derivative of a norm', causes.SafeNorm, ''),
    _case('branch without gradients', losses.NoGradBranch, ''),
    _case('bad metric', losses.BadMetric, ''),
    _case('clamped infinity', losses.Hidden, ''),
]


def _pattern(one: Pattern) -> tuple[Case, Case]:
    """A bug of the literature, and its innocent twin."""
    wrapper = _FP16 if one.verdict.startswith('fp16') else _FP32
    bug = Case(
        one.name,
        planted(one.head(one.bug)),
        one.op,
        one.verdict,
        wrapper=wrapper,
        line=one.line,
        remedy=one.remedy,
    )
    fixed = Case(
        f'{one.name}, fixed', planted(one.head(one.fixed)), wrapper=wrapper
    )
    return bug, fixed


PATTERN_CASES, TWINS = map(list, zip(*map(_pattern, PATTERNS)))


def build_runner(case: Case, folder: Path, hooks: list[Any]) -> Runner:
    """A runner that meets the cause in its second iteration."""
    model, data = case.model(), Samples(case)
    optimizer = dict(type='SGD', lr=case.lr)
    wrapper: Any = dict(case.wrapper, optimizer=optimizer)
    if isinstance(model, causes.Gan):
        wrapper = OptimWrapperDict(
            **{
                name: SafeOptimWrapper(
                    torch.optim.SGD(getattr(model, name).parameters(), case.lr)
                )
                for name in ('gen', 'disc')
            }
        )
    return Runner(
        model=model,
        work_dir=str(folder),
        train_dataloader=DataLoader(
            data,
            batch_size=case.batch_size,
            sampler=DefaultSampler(data, shuffle=False),
            collate_fn=pseudo_collate,
        ),
        train_cfg=dict(
            type='mmstable.SafeIterBasedTrainLoop',
            max_iters=3,
            val_interval=10**6,
        ),
        optim_wrapper=wrapper,
        custom_hooks=hooks,
        default_hooks=dict(
            checkpoint=dict(type='CheckpointHook', interval=10**6)
        ),
        randomness=dict(seed=0),
        log_level='ERROR',
        experiment_name=f'planted_{next(_RUNS)}',
        cfg=Config(dict()),
    )


def run_case(
    case: Case, folder: Path, forensics: dict[str, Any] | None = None
) -> list[FaultExplained]:
    """Run a case; what was explained in it."""
    findings = Findings()
    hook = dict(type='mmstable.FaultForensicsHook', **(forensics or {}))
    hooks = [Prepare(case.prepare), hook, findings]
    build_runner(case, folder, hooks).train()
    return findings.found
