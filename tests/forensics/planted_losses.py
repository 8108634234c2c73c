"""More planted causes, as they are met in losses and layers of OpenMMLab.

As in ``planted_causes``: ``flag`` is 1 for the sample that shows the cause,
and the line to blame is marked.
"""

from __future__ import annotations

import random

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

from tests.forensics.planted_causes import Head


class Giou(Head):
    """The IoU of two boxes without an area."""

    def bad(self, x, flag):
        width = x[:, :2].sigmoid() * (1 - flag)
        area = width.prod(1)
        overlap = (width * 0.5).prod(1)
        union = area + (1 - flag[:, 0]) - overlap
        iou = overlap / union  # cause
        hull = area + 1
        return (1 - (iou - (hull - union) / hull)).mean()


class SmoothL1(Head):
    """`beta` is 0: the branch that is not taken divides by it."""

    def bad(self, x, flag):
        diff, beta = x.abs(), 1 - flag
        loss = torch.where(diff < beta, 0.5 * diff**2 / beta, diff)  # cause
        return loss.mean()


class Centerness(Head):
    """The root of a negative number: a point outside of its box."""

    def bad(self, x, flag):
        left = x.sigmoid()[:, 0] * (1 - 2 * flag[:, 0])
        right = x.sigmoid()[:, 1]
        ratio = torch.minimum(left, right) / torch.maximum(left, right)
        return ratio.sqrt().mean()  # cause


class Cosine(Head):
    """The cosine of a zero vector, by hand."""

    def bad(self, x, flag):
        y = x * (1 - flag)
        norms = y.square().sum(1) * x.square().sum(1)
        return ((x * y).sum(1) / norms).mean()  # cause


class Normalize(Head):
    """`F.normalize` without an epsilon."""

    def bad(self, x, flag):
        return F.normalize(x * (1 - flag), dim=1, eps=0.0).mean()  # cause


class BoxDecoder(Head):
    """The exponential of a size, without a clamp."""

    def bad(self, x, flag):
        size = (x[:, 2:] + 200 * flag).exp()  # cause
        return size.mean()


class NanToNum(Head):
    """`nan_to_num` hides log(0), but not its derivative."""

    def bad(self, x, flag):
        chance = x.sigmoid() * (1 - flag)
        return chance.log().nan_to_num(neginf=0.0).mean()  # cause


class ScatterMean(Head):
    """The mean of the points in each voxel, one of which has none."""

    def bad(self, x, flag):
        size = 2 * len(x)
        voxel = 2 * torch.arange(len(x))[:, None] + torch.tensor([0, 1, 0, 1])
        voxel = torch.where(flag > 0, voxel // 2 * 2, voxel).reshape(-1)
        sums = x.new_zeros(size).index_add(0, voxel, x.reshape(-1))
        counts = x.new_zeros(size).index_add(0, voxel, torch.ones(x.numel()))
        means = sums / counts  # cause
        return (means / means.abs().sum()).square().sum()


class LogSumExp(Head):
    """Two sums over a row that is masked everywhere."""

    def bad(self, x, flag):
        row = x.masked_fill(flag > 0, float('-inf'))
        gap = row.logsumexp(1) - row.amax(1)  # cause
        return (gap * x[:, 0]).mean()


class IndexPut(Head):
    """Some places of a tensor are written to."""

    def bad(self, x, flag):
        target = torch.zeros_like(x)
        places = torch.tensor([0, 2])
        target[:, places] = x[:, places] / (1 - flag)  # cause
        return target.mean()


class InPlaceDiv(Head):
    """A view is divided in place."""

    def bad(self, x, flag):
        y = x * 1
        y[:, 1:3].div_(1 - flag)  # cause
        return y.mean()


class LogFunction(torch.autograd.Function):
    """A function whose own forward pass is bad."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.log()  # cause

    @staticmethod
    def backward(ctx, grad):
        return grad / ctx.saved_tensors[0]


class OwnForward(Head):
    """Uses it."""

    def bad(self, x, flag):
        return LogFunction.apply(x.sigmoid() * (1 - flag)).mean()


class NestedCheckpoint(Head):
    """A checkpoint in a checkpoint."""

    def bad(self, x, flag):
        return checkpoint(self.outer, x, flag, use_reentrant=False)

    def outer(self, x, flag):
        return checkpoint(self.inner, x, flag, use_reentrant=False).mean()

    def inner(self, x, flag):
        return (x.square() * (1 - flag)).sqrt()  # cause


class Compiled(Head):
    """A part that torch compiles."""

    def __init__(self):
        super().__init__()
        self.inner = torch.compile(self.part, backend='eager')

    def bad(self, x, flag):
        return self.inner(x, flag)

    def part(self, x, flag):
        """Compiled."""
        return (x.sigmoid() * (1 - flag)).log().mean()  # cause


class TwoBirths(Head):
    """Of two bad values only one reaches the loss."""

    def bad(self, x, flag):
        chance = x.sigmoid() * (1 - flag)
        harmless = chance.log()
        with torch.no_grad():
            self.entropy = (chance * harmless).sum()
        kept = harmless.detach().clamp(min=-5)
        return ((x * (1 - flag)) / (1 - flag)).mean() + kept.mean()  # cause


class LogitZero(Head):
    """The inverse of the sigmoid at 0."""

    def bad(self, x, flag):
        return (x.sigmoid() * (1 - flag)).logit().mean()  # cause


class ClassWeight(Head):
    """All targets are of classes with the weight 0."""

    def bad(self, x, flag):
        weight = torch.tensor([1.0, 0, 1, 1])
        label = flag[:, 0].long()
        losses = [
            F.cross_entropy(a[None], b[None], weight)  # cause
            for a, b in zip(self.fc(x), label)
        ]
        return sum(losses) / len(losses)


class CtcTooShort(Head):
    """CTC of a target that is longer than its input."""

    def bad(self, x, flag):
        logs = self.fc(x).log_softmax(-1)[None].expand(3, -1, -1)
        targets = torch.ones(len(x), 4, dtype=torch.long)
        lengths = (1 + 3 * flag[:, 0]).long()
        sizes = torch.full((len(x),), 3)
        return F.ctc_loss(logs, targets, sizes, lengths)  # cause


class GradientPenalty(Head):
    """The norm of a gradient that is 0, inside of a loss."""

    def bad(self, x, flag):
        y = x.detach().requires_grad_()
        score = (self.fc(y).square() * (1 - flag)).sum()
        (grad,) = torch.autograd.grad(score, y, create_graph=True)
        return (grad.square().sum(1).sqrt() - 1).square().mean()  # cause


class HookedGradient(Head):
    """A hook on a gradient divides by 0."""

    def bad(self, x, flag):
        y = x * 1
        y.register_hook(lambda grad: grad / (1 - flag))  # cause
        return y.mean()


class Scripted(Head):
    """A loss that was scripted."""

    def bad(self, x, flag):
        return _scripted(x, flag)  # cause


@torch.jit.script
def _scripted(x, flag):
    return torch.log(x.sigmoid() * (1 - flag)).mean()


class RandomDrop(Head):
    """It depends on the random numbers of all libraries."""

    def __init__(self):
        super().__init__()
        self.bad_draw = None

    def bad(self, x, flag):
        draw = random.random() + np.random.rand() + float(torch.rand(()))
        if flag.sum() and self.bad_draw is None:
            type(self).drawn = draw
            self.bad_draw = draw
        if draw == getattr(type(self), 'drawn', None):
            return (x / (1 - flag)).mean()  # cause
        return x.mean()


class Eigen(Head):
    """The derivative of eigenvectors of equal eigenvalues."""

    def bad(self, x, flag):
        eye = torch.eye(2) * flag[:, :, None]
        other = torch.diag_embed(x[:, :2] + torch.tensor([0.0, 5.0]))
        matrix = eye + other * (1 - flag)[:, :, None]
        values, vectors = torch.linalg.eigh(matrix)  # cause
        return (vectors[:, 0, 0] * x[:, 0]).mean() + values.mean()


class Transposed(Head):
    """The samples are in another dimension, as in DETR."""

    def bad(self, x, flag):
        y = x.t()[:, :, None] * (1 - flag)[None]
        return (y / y.sum(0, keepdim=True)).mean()  # cause


class Flattened(Head):
    """All anchors of all samples in one list."""

    def bad(self, x, flag):
        y = (x.sigmoid() * (1 - flag)).reshape(-1)
        return -y.log().mean()  # cause


class Coupled(Head):
    """BatchNorm by hand ahead of the cause couples all samples."""

    def __init__(self):
        super().__init__()
        self.norm = nn.BatchNorm1d(4)

    def bad(self, x, flag):
        x = self.norm(x)
        return (x / (1 - flag)).mean()  # cause


class Sparse(Head):
    """A bad value that goes through a sparse matrix."""

    def bad(self, x, flag):
        matrix = torch.diag((x / (1 - flag))[:, 0]).to_sparse()  # cause
        return torch.sparse.mm(matrix, self.fc(x)).mean()


class AlmostZero(Head):
    """A divisor that is not 0, but too small."""

    def bad(self, x, flag):
        return (x / (1e-40 * flag + (1 - flag))).mean()  # cause


class NanNumber(Head):
    """A number of Python that is NaN."""

    def bad(self, x, flag):
        factor = float('nan') if flag.sum() else 1.0
        return (x * factor).mean()  # cause


class Rounded(Head):
    """A probability that is 1 only after it was rounded."""

    def bad(self, x, flag):
        x = self.fc(x)
        chance = (0.01 * x + (7 * flag).to(x.dtype)).sigmoid()
        return -(1 - chance).log().mean()  # cause


class SmallEpsilon(Head):
    """An epsilon that is 0 in float16, as that of a Gaussian focal loss."""

    def bad(self, x, flag):
        x = self.fc(x)
        chance = x.sigmoid() * (1 - flag).to(x.dtype)
        eps = torch.tensor(1e-12, dtype=x.dtype)
        return -(chance + eps).log().mean()  # cause


class NoGradBranch(Head):
    """A bad metric, nothing that is trained on."""

    def bad(self, x, flag):
        with torch.no_grad():
            self.metric = ((x * 0) / (1 - flag)).log().mean()
        return x.square().mean()


class BadMetric(Head):
    """A bad value that is only logged."""

    def loss(self, x, flag):
        return {
            'loss_good': self.fc(x).square().mean(),
            'acc': (x.detach() / (1 - flag)).mean(),
        }


class Hidden(Head):
    """An infinity that is clamped, with a gradient that is masked."""

    def bad(self, x, flag):
        ratio = x.detach() / (1 - flag)
        return (x * ratio.clamp(-1, 1)).mean()
