"""FSDP: what is cut into parts is judged and clipped as a whole."""

from __future__ import annotations

import copy

import pytest
import torch
from mmengine.config import Config
from mmengine.dataset import InfiniteSampler
from mmengine.dist import all_gather_object
from mmengine.runner._flexible_runner import FlexibleRunner
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel
from torch.distributed.fsdp.wrap import ModuleWrapPolicy
from torch.utils.data import DataLoader

from mmstable.dist.collectives import Sharing
from mmstable.errors import ConfigError
from mmstable.events import Fault, Outcome
from mmstable.optim import SafeAmpOptimWrapper, SafeOptimWrapper
from mmstable.optim.clipping import parse_clip
from tests.ranks import run_ranks
from tests.torch_features import needs_fsdp
from tests.toys import INF, ToyData, ToyModel, assert_same, toy_batch, toy_net

pytestmark = [pytest.mark.dist, needs_fsdp]

CLIPS = [
    dict(max_norm=0.1),
    dict(max_norm=0.1, norm_type=1),
    dict(max_norm=0.05, norm_type=float('inf')),
]


def flat(net):
    # One unit for each layer: of some parameters a rank holds nothing.
    return FullyShardedDataParallel(
        net,
        auto_wrap_policy=ModuleWrapPolicy({nn.Linear}),
        device_id=torch.device('cpu'),
        use_orig_params=True,
    )


def whole(net):
    return FullyShardedDataParallel(net, device_id=torch.device('cpu'))


def by_dtensor(net):
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    mesh = init_device_mesh('cpu', (torch.distributed.get_world_size(),))
    fully_shard(net.backbone, mesh=mesh)
    return fully_shard(net, mesh=mesh)


def full_weights(model):
    if isinstance(model, FullyShardedDataParallel):
        with FullyShardedDataParallel.summon_full_params(
            model, writeback=False
        ):
            return [p.detach().clone() for p in model.parameters()]
    return [p.full_tensor().detach() for p in model.parameters()]


def loss_of(model, index):
    x, y = toy_batch(index)
    return (model(x).float() - y).square().mean()


def step(model, wrapper, index, bad=False, late=False):
    rank = torch.distributed.get_rank()
    with wrapper.optim_context(model):
        loss = loss_of(model, 2 * index + rank)
    if bad and rank == 1:
        loss = loss * float('nan')
    wrapper.backward(wrapper.scale_loss(loss))
    if late and rank == 1:
        # In this rank's own part, after all gradients were averaged.
        grads = [p.grad for p in model.parameters() if p.grad is not None]
        parts = [getattr(g, 'to_local', lambda g=g: g)() for g in grads]
        part = next(part for part in parts if part.numel())
        part.view(-1)[0] = INF
    wrapper.step()
    wrapper.zero_grad()
    return wrapper.last_step


def reference(clip, steps):
    """One process, with the average of what both ranks see."""
    net = toy_net()
    optimizer = torch.optim.AdamW(net.parameters(), lr=0.01)
    norms = []
    for index in range(steps):
        optimizer.zero_grad()
        for rank in range(2):
            (loss_of(net, 2 * index + rank) / 2).backward()
        norms.append(
            torch.nn.utils.clip_grad_norm_(net.parameters(), **clip).item()
        )
        optimizer.step()
    return norms, [p.detach() for p in net.parameters()]


def as_if_it_were_whole(shard, scale, clip, fused=False):
    model = shard(toy_net())
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01, fused=fused)
    settings = dict(optimizer=optimizer, clip_grad=dict(clip))
    if scale is None:
        wrapper = SafeOptimWrapper(**settings)
    else:
        # Not told of FSDP, as mmengine does not either.
        wrapper = SafeAmpOptimWrapper(
            loss_scale=scale, dtype='float32', **settings
        )
    norms, expected = reference(clip, 3)
    for index in range(3):
        report = step(model, wrapper, index)
        assert report.applied
        assert report.grad_norm == pytest.approx(norms[index], rel=1e-4)
    assert wrapper._ranks.sharing is Sharing.SHARDED
    for ours, theirs in zip(full_weights(model), expected):
        assert torch.allclose(ours.reshape(-1), theirs.reshape(-1), atol=1e-5)

    before = full_weights(model)
    bad = step(model, wrapper, 3, bad=True)
    assert bad.fault is Fault.NAN_LOSS
    assert [(o.rank, o.where) for o in bad.origins] == [(1, 'loss')]
    late = step(model, wrapper, 3, late=True)
    assert late.fault is Fault.NAN_GRAD
    # Who holds a part is not who spoiled it.
    assert late.origins == ()
    for report in (bad, late):
        assert report.outcome is Outcome.SKIPPED
        assert report.culprits
        # All ranks tell the same, also what only one of them holds.
        assert len(set(all_gather_object(report.culprits))) == 1
    for ours, theirs in zip(full_weights(model), before):
        assert torch.equal(ours, theirs)
    assert step(model, wrapper, 4).applied


def runner(folder, **kwargs):
    data = ToyData()
    return FlexibleRunner(
        model=ToyModel(),
        work_dir=str(folder),
        strategy=dict(type='mmstable.SafeFSDPStrategy'),
        train_dataloader=DataLoader(
            data, batch_size=2, sampler=InfiniteSampler(data, shuffle=False)
        ),
        train_cfg=dict(by_epoch=False, max_iters=6, val_interval=10**6),
        optim_wrapper=dict(
            type='mmstable.SafeAmpOptimWrapper',
            loss_scale=dict(init_scale=64.0, growth_interval=2),
            clip_grad=dict(max_norm=0.1),
            optimizer=dict(type='AdamW', lr=0.01),
        ),
        default_hooks=dict(
            checkpoint=dict(type='CheckpointHook', interval=3, by_epoch=False),
            logger=dict(type='LoggerHook', interval=10),
        ),
        launcher='pytorch',
        experiment_name=folder.name,
        cfg=Config(dict()),
        **kwargs,
    )


def a_run_goes_on(folder):
    unbroken = runner(folder / 'fsdp_whole')
    unbroken.train()
    assert unbroken.optim_wrapper._ranks.sharing is Sharing.SHARDED
    resumed = runner(
        folder / 'fsdp_rest',
        load_from=str(folder / 'fsdp_whole/iter_3.pth'),
        resume=True,
    )
    resumed.train()
    assert resumed.optim_wrapper.applied_steps == 6
    for one, other in zip(
        full_weights(resumed.model), full_weights(unbroken.model)
    ):
        assert torch.equal(one, other)
    assert_same(
        resumed.optim_wrapper.loss_scaler.state_dict(),
        unbroken.optim_wrapper.loss_scaler.state_dict(),
    )


def dtensors_save_and_resume():
    from torch.distributed.checkpoint.state_dict import (
        StateDictOptions,
        get_state_dict,
        set_state_dict,
    )

    def build():
        model = by_dtensor(toy_net())
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
        return model, SafeAmpOptimWrapper(
            optimizer=optimizer, loss_scale=64.0, dtype='float16'
        )

    options = StateDictOptions(full_state_dict=True)
    model, wrapper = build()
    step(model, wrapper, 0)
    # Parts of it are the live state, as a file would not be.
    saved = copy.deepcopy(
        get_state_dict(model, wrapper.optimizer, options=options)
    )
    own = {
        key: value
        for key, value in wrapper.state_dict().items()
        if key in ('safe_step', 'loss_scaler')
    }
    other, resumed = build()
    set_state_dict(
        other,
        resumed.optimizer,
        model_state_dict=saved[0],
        optim_state_dict=saved[1],
        options=options,
    )
    resumed.load_state_dict({**resumed.optimizer.state_dict(), **own})
    step(model, wrapper, 1), step(other, resumed, 1)
    for one, two in zip(full_weights(model), full_weights(other)):
        assert torch.equal(one, two)
    assert resumed.applied_steps == 2


def units_need_whole_parameters():
    model = whole(toy_net())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    wrapper = SafeOptimWrapper(optimizer)
    wrapper.clip = parse_clip('test', method='agc')
    with pytest.raises(ConfigError, match='unit-wise.* needs whole param'):
        step(model, wrapper, 0)
    wrapper.zero_grad()
    wrapper.clip = parse_clip('test', method='value', clip_value=0.01)
    report = step(model, wrapper, 1)
    assert report.applied
    assert report.clipped_norm is None


def two_ranks(rank, folder):
    torch.set_num_threads(1)
    as_if_it_were_whole(flat, None, CLIPS[0])
    as_if_it_were_whole(flat, 64.0, CLIPS[1], fused=True)
    as_if_it_were_whole(whole, None, CLIPS[2])
    if hasattr(torch.distributed.fsdp, 'fully_shard'):
        for clip in CLIPS:
            as_if_it_were_whole(by_dtensor, 64.0, clip)
        as_if_it_were_whole(by_dtensor, 64.0, CLIPS[0], fused=True)
        dtensors_save_and_resume()
    units_need_whole_parameters()
    a_run_goes_on(folder)


def test_shards_are_one_model(tmp_path):
    run_ranks(two_ranks, tmp_path)
