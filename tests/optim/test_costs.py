"""What a healthy step dispatches, counted."""

from collections import Counter

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten

from mmstable import SafeAmpOptimWrapper, SafeOptimWrapper
from mmstable.optim import grad_health

HOST_READ = torch.ops.aten._local_scalar_dense.default


class Recorder(TorchDispatchMode):
    """Counts operators and finds out how large their new tensors are."""

    def __init__(self):
        super().__init__()
        self.calls = Counter()
        self.largest = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.calls[func] += 1
        known = {
            t.untyped_storage().data_ptr()
            for t in tree_flatten((args, kwargs))[0]
            if torch.is_tensor(t)
        }
        out = func(*args, **(kwargs or {}))
        for tensor in tree_flatten(out)[0]:
            if (
                torch.is_tensor(tensor)
                and tensor.untyped_storage().data_ptr() not in known
            ):
                self.largest = max(self.largest, tensor.numel())
        return out


def stepped(cls, fused, clip, **kwargs):
    torch.manual_seed(0)
    params = [torch.nn.Parameter(torch.randn(64, 64)) for _ in range(5)]
    optimizer = torch.optim.AdamW(params, fused=fused)
    wrapper = cls(optimizer=optimizer, clip_grad=clip, **kwargs)
    for _ in range(2):
        loss = sum(p.square().sum() for p in params)
        wrapper.backward(loss)
        recorder = Recorder()
        with recorder:
            wrapper.step()
        wrapper.zero_grad()
    assert wrapper.last_step.applied
    return recorder


@pytest.mark.parametrize('clip', [None, dict(max_norm=1.0)])
@pytest.mark.parametrize('cls', [SafeOptimWrapper, SafeAmpOptimWrapper])
def test_a_fused_step_never_waits_for_the_device(cls, clip):
    recorder = stepped(cls, True, clip)
    assert recorder.calls[HOST_READ] == 0
    assert recorder.largest <= 5


@pytest.mark.parametrize('clip', [None, dict(max_norm=1.0)])
@pytest.mark.parametrize('cls', [SafeOptimWrapper, SafeAmpOptimWrapper])
def test_the_safe_part_of_another_step(cls, clip, monkeypatch):
    # The optimizer itself reads its step counters: leave it out.
    monkeypatch.setattr(torch.optim.AdamW, 'step', lambda *a, **k: None)
    recorder = stepped(cls, False, clip)
    assert recorder.calls[HOST_READ] == 0
    assert recorder.largest <= 5
    assert recorder.calls[torch.ops.aten._foreach_mul_.Scalar] <= 1


def test_gradients_are_read_once():
    large = [torch.randn(2**15) for _ in range(3)]
    small = [torch.randn(100) for _ in range(7)]
    recorder = Recorder()
    with recorder:
        norms = grad_health.gradient_norms([*small, *large])
        grad_health.total_norm(norms)
    assert recorder.calls[torch.ops.aten.dot.default] == 3
    assert recorder.calls[torch.ops.aten._foreach_norm.Scalar] == 1
    assert recorder.largest <= 10


def test_large_and_small_gradients_keep_their_order():
    sizes = [4, 2**14, 9, 2**16, 2**14 - 1]
    norms = grad_health.gradient_norms([torch.ones(n) for n in sizes])
    assert norms.tolist() == pytest.approx([n**0.5 for n in sizes])
