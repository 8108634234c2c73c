"""Numerical bugs as the literature lists them, each with its innocent twin.

Written after the kinds of GRIST, RANUM and DeepStability, as they look in
losses and heads of OpenMMLab. ``flag`` is 1 for the sample that shows a bug;
``bug`` has the line to blame, ``fixed`` computes the same as it should be.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F

from tests.forensics.planted_causes import Head


@dataclass(frozen=True)
class Pattern:
    """A bug, its twin, and the truth about it.

    Args:
        name (str): What it is called.
        bug (Callable): The loss with the bug.
        fixed (Callable): The loss without it.
        op (str): The operation to blame.
        remedy (str): Words of the advice.
        verdict (str): The kind of cause.
    """

    name: str
    bug: Callable[..., Any]
    fixed: Callable[..., Any]
    op: str
    remedy: str
    verdict: str = 'domain_error'

    @property
    def line(self) -> str:
        """The line to blame."""
        lines = inspect.getsource(self.bug).splitlines()
        return next(one.strip() for one in lines if one.endswith('# cause'))

    def head(self, loss: Callable[..., Any]) -> type[Head]:
        """A head with this loss."""
        return type('PatternHead', (Head,), {'bad': loss})


PATTERNS: list[Pattern] = []
LOG, ROOT, DIVISOR = 'log_softmax', 'inside of it', 'Clamp the divisor'
EXP, ONE, FP32 = 'logsumexp', '-1 + eps..1 - eps', 'in float32'
OVERFLOW, UNDERFLOW = 'fp16_overflow', 'fp16_underflow'


def pattern(
    op: str, remedy: str, verdict: str = 'domain_error'
) -> Callable[[type], type]:
    """Take a class with ``bug`` and ``fixed`` into the list."""

    def add(one: type) -> type:
        name = (one.__doc__ or '').rstrip('.')
        bodies: Any = one
        PATTERNS.append(
            Pattern(name, bodies.bug, bodies.fixed, op, remedy, verdict)
        )
        return one

    return add


@pattern('aten.log.default', LOG)
class LogSoftmax:
    """log of a softmax."""

    def bug(self, x, flag):
        chance = (x * (1 + 1e4 * flag)).softmax(1)
        return -chance.log().mean()  # cause

    def fixed(self, x, flag):
        return -F.log_softmax(x * (1 + 1e4 * flag), 1).mean()


@pattern('aten.log.default', LOG)
class LogSigmoid:
    """log of a sigmoid."""

    def bug(self, x, flag):
        return -(x - 300 * flag).sigmoid().log().mean()  # cause

    def fixed(self, x, flag):
        return -F.logsigmoid(x - 300 * flag).mean()


@pattern('aten.log.default', LOG)
class BceByHand:
    """binary cross entropy by hand."""

    def bug(self, x, flag):
        score = (x + 300 * flag).sigmoid()
        return -(1 - score).log().mean()  # cause

    def fixed(self, x, flag):
        target = torch.zeros_like(x)
        return F.binary_cross_entropy_with_logits(x + 300 * flag, target)


@pattern('aten.log.default', LOG)
class Entropy:
    """entropy of a one-hot distribution."""

    def bug(self, x, flag):
        chance = (x * (1 + 1e4 * flag)).softmax(1)
        return -(chance * chance.log()).sum(1).mean()  # cause

    def fixed(self, x, flag):
        logits = x * (1 + 1e4 * flag)
        return -(logits.softmax(1) * logits.log_softmax(1)).sum(1).mean()


@pattern('aten.reciprocal.default', DIVISOR)
class KlByHand:
    """KL divergence by a ratio."""

    def bug(self, x, flag):
        chance = x.softmax(1) * (1 - flag)
        return (0.25 * (0.25 / chance).log()).sum(1).mean()  # cause

    def fixed(self, x, flag):
        logs = (x.softmax(1) * (1 - flag)).clamp(min=1e-6).log()
        return F.kl_div(logs, torch.full_like(x, 0.25), reduction='batchmean')


@pattern('aten.log1p.default', LOG)
class Log1p:
    """log1p of -1."""

    def bug(self, x, flag):
        score = (x + 300 * flag).sigmoid()
        return -torch.log1p(-score).mean()  # cause

    def fixed(self, x, flag):
        return F.softplus(x + 300 * flag).mean()


@pattern('aten.log2.default', LOG)
class Bits:
    """log2 of an empty bin."""

    def bug(self, x, flag):
        share = x.softmax(1) * (1 - flag)
        return -share.log2().mean()  # cause

    def fixed(self, x, flag):
        return -(x.softmax(1) * (1 - flag)).clamp(min=1e-6).log2().mean()


@pattern('aten.log10.default', LOG)
class Psnr:
    """PSNR of equal images."""

    def bug(self, x, flag):
        error = (x * (1 - flag)).square().mean(1)
        return 10 * error.log10().mean()  # cause

    def fixed(self, x, flag):
        error = (x * (1 - flag)).square().mean(1)
        return 10 * (error + 1e-8).log10().mean()


@pattern('aten.log.default', LOG)
class NegativeLog:
    """log of a negative size."""

    def bug(self, x, flag):
        width = x.abs() + 1 - 9 * flag
        return width.log().mean()  # cause

    def fixed(self, x, flag):
        return (x.abs() + 1 - 9 * flag).clamp(min=1e-6).log().mean()


@pattern('aten.xlogy.Tensor', LOG)
class Xlogy:
    """xlogy of a target and 0."""

    def bug(self, x, flag):
        target = 1 + x.detach().abs()
        return -torch.xlogy(target, x.softmax(1) * (1 - flag)).mean()  # cause

    def fixed(self, x, flag):
        score = (x.softmax(1) * (1 - flag)).clamp(min=1e-6)
        return -torch.xlogy(1 + x.detach().abs(), score).mean()


@pattern('aten.logit.default', 'Clamp the operand')
class InverseSigmoid:
    """inverse sigmoid of a point at the border."""

    def bug(self, x, flag):
        point = x.sigmoid() * (1 - flag) + flag
        return point.logit().mean()  # cause

    def fixed(self, x, flag):
        return (x.sigmoid() * (1 - flag) + flag).logit(eps=1e-5).mean()


@pattern('aten.log.default', LOG)
class Likelihood:
    """likelihood as a product."""

    def bug(self, x, flag):
        chance = x.sigmoid() * (1 - flag + 1e-30 * flag)
        return -chance.prod(1).log().mean()  # cause

    def fixed(self, x, flag):
        return -(x.sigmoid() * (1 - flag + 1e-30 * flag)).log().sum(1).mean()


@pattern('aten.log.default', LOG)
class Gumbel:
    """Gumbel noise of a draw of 0."""

    def bug(self, x, flag):
        draw = x.sigmoid() * (1 - flag)
        return (-draw.log()).mean()  # cause

    def fixed(self, x, flag):
        return (-(x.sigmoid() * (1 - flag)).clamp(min=1e-6).log()).mean()


@pattern('aten.div.Tensor', LOG)
class ClampAfterLog:
    """clamp behind the log."""

    def bug(self, x, flag):
        chance = x.sigmoid() * (1 - flag)
        return -chance.log().clamp(min=-100).mean()  # cause

    def fixed(self, x, flag):
        return -(x.sigmoid() * (1 - flag)).clamp(min=1e-6).log().mean()


@pattern('aten.exp.default', 'softplus', 'exploding')
class Softplus:
    """softplus by hand."""

    def bug(self, x, flag):
        return (x + 200 * flag).exp().log1p().mean()  # cause

    def fixed(self, x, flag):
        return F.softplus(x + 200 * flag).mean()


@pattern('aten.exp.default', EXP, 'exploding')
class LogSumExp:
    """logsumexp by hand."""

    def bug(self, x, flag):
        return (x + 200 * flag).exp().sum(1).log().mean()  # cause

    def fixed(self, x, flag):
        return (x + 200 * flag).logsumexp(1).mean()


@pattern('aten.exp.default', EXP, 'exploding')
class Softmax:
    """softmax by hand."""

    def bug(self, x, flag):
        power = (x + 200 * flag).exp()  # cause
        return (power / power.sum(1, keepdim=True)).square().mean()

    def fixed(self, x, flag):
        return (x + 200 * flag).softmax(1).square().mean()


@pattern('aten.exp.default', EXP, 'exploding')
class Sigmoid:
    """sigmoid by hand."""

    def bug(self, x, flag):
        return (1 / (1 + (200 * flag - x).exp())).mean()  # cause

    def fixed(self, x, flag):
        return (x - 200 * flag).sigmoid().mean()


@pattern('aten.exp.default', EXP, 'exploding')
class Tanh:
    """tanh by hand."""

    def bug(self, x, flag):
        power = (2 * x + 200 * flag).exp()  # cause
        return ((power - 1) / (power + 1)).mean()

    def fixed(self, x, flag):
        return (x + 100 * flag).tanh().mean()


@pattern('aten.cosh.default', 'softplus', 'exploding')
class LogCosh:
    """log-cosh loss."""

    def bug(self, x, flag):
        return (x + 200 * flag).cosh().log().mean()  # cause

    def fixed(self, x, flag):
        error = x + 200 * flag
        return (error + F.softplus(-2 * error) - 0.6931).mean()


@pattern('aten.expm1.default', 'clamp', 'exploding')
class Elu:
    """ELU by hand, in the branch that is not taken."""

    def bug(self, x, flag):
        y = x + 200 * flag
        return torch.where(y > 0, y, y.expm1()).mean()  # cause

    def fixed(self, x, flag):
        return F.elu(x + 200 * flag).mean()


@pattern('aten.pow.Tensor_Scalar', 'clip gradients', 'exploding')
class LargePower:
    """the square of a coordinate that is not normalized."""

    def bug(self, x, flag):
        return ((x.abs() + 1e20 * flag) ** 2).mean()  # cause

    def fixed(self, x, flag):
        return ((x.abs() + 1e20 * flag).clamp(max=1e3) ** 2).mean()


@pattern('aten.div.Tensor', ROOT)
class Distance:
    """distance of equal points."""

    def bug(self, x, flag):
        gap = x * (1 - flag)
        return gap.square().sum(1).sqrt().mean()  # cause

    def fixed(self, x, flag):
        return ((x * (1 - flag)).square().sum(1) + 1e-12).sqrt().mean()


@pattern('aten.div.Tensor', ROOT)
class StdByHand:
    """standard deviation of a constant row, by hand."""

    def bug(self, x, flag):
        y = x * (1 - flag)
        gap = y - y.mean(1, keepdim=True)
        return gap.square().mean(1).sqrt().mean()  # cause

    def fixed(self, x, flag):
        y = x * (1 - flag)
        gap = y - y.mean(1, keepdim=True)
        return (gap.square().mean(1) + 1e-6).sqrt().mean()


@pattern('aten.rsqrt.default', DIVISOR)
class RmsNorm:
    """RMS norm without an epsilon."""

    def bug(self, x, flag):
        y = x * (1 - flag)
        return (y + y.square().mean(1, keepdim=True).rsqrt()).mean()  # cause

    def fixed(self, x, flag):
        y = x * (1 - flag)
        return (y + (y.square().mean(1, keepdim=True) + 1e-6).rsqrt()).mean()


@pattern('aten.sqrt.default', ROOT)
class NegativeRoot:
    """root of a difference."""

    def bug(self, x, flag):
        rest = x.square() + 1 - 9 * flag
        return rest.sqrt().mean()  # cause

    def fixed(self, x, flag):
        return ((x.square() + 1 - 9 * flag).clamp(min=0) + 1e-6).sqrt().mean()


@pattern('aten.pow.Tensor_Scalar', ROOT)
class Gamma:
    """gamma correction of black."""

    def bug(self, x, flag):
        color = x.sigmoid() * (1 - flag)
        return (color ** (1 / 2.2)).mean()  # cause

    def fixed(self, x, flag):
        return ((x.sigmoid() * (1 - flag)).clamp(min=1e-6) ** 0.45).mean()


@pattern('aten.pow.Tensor_Scalar', ROOT)
class FocalGamma:
    """focal loss with a gamma below 1."""

    def bug(self, x, flag):
        miss = 1 - (x + 300 * flag).sigmoid()
        return miss.pow(0.5).mean()  # cause

    def fixed(self, x, flag):
        miss = 1 - (x + 300 * flag).sigmoid()
        return miss.clamp(min=1e-6).pow(0.5).mean()


@pattern('aten.pow.Tensor_Scalar', 'Clamp the base')
class NegativeBase:
    """fractional power of a negative number."""

    def bug(self, x, flag):
        return (x.abs() + 1 - 9 * flag).pow(1.5).mean()  # cause

    def fixed(self, x, flag):
        return (x.abs() + 1 - 9 * flag).clamp(min=1e-6).pow(1.5).mean()


@pattern('aten.pow.Tensor_Scalar', DIVISOR)
class InversePower:
    """negative power of 0."""

    def bug(self, x, flag):
        return ((x.abs() + 1) * (1 - flag)).pow(-2.0).mean()  # cause

    def fixed(self, x, flag):
        depth = (x.abs() + 1) * (1 - flag)
        return depth.clamp(min=0.1).pow(-2.0).mean()


@pattern('aten.rsqrt.default', ONE)
class AngularMargin:
    """arccos of a cosine of 1, as in ArcFace."""

    def bug(self, x, flag):
        cosine = 0.9 * x.tanh() * (1 - flag) + flag
        return cosine.acos().mean()  # cause

    def fixed(self, x, flag):
        cosine = 0.9 * x.tanh() * (1 - flag) + flag
        return cosine.clamp(-1 + 1e-6, 1 - 1e-6).acos().mean()


@pattern('aten.rsqrt.default', ONE)
class Arcsin:
    """arcsin of -1."""

    def bug(self, x, flag):
        return (0.9 * x.tanh() * (1 - flag) - flag).asin().mean()  # cause

    def fixed(self, x, flag):
        sine = 0.9 * x.tanh() * (1 - flag) - flag
        return sine.clamp(-1 + 1e-6, 1 - 1e-6).asin().mean()


@pattern('aten.acos.default', ONE)
class Geodesic:
    """angle of a rotation that was rounded."""

    def bug(self, x, flag):
        cosine = 0.9 * x.tanh() * (1 - flag) + 1.000001 * flag
        return cosine.acos().mean()  # cause

    def fixed(self, x, flag):
        cosine = 0.9 * x.tanh() * (1 - flag) + 1.000001 * flag
        return cosine.clamp(-1 + 1e-6, 1 - 1e-6).acos().mean()


@pattern('aten.atanh.default', ONE)
class Atanh:
    """atanh of a saturated tanh."""

    def bug(self, x, flag):
        return (x + 300 * flag).tanh().atanh().mean()  # cause

    def fixed(self, x, flag):
        y = (x + 300 * flag).tanh()
        return y.clamp(-1 + 1e-6, 1 - 1e-6).atanh().mean()


@pattern('aten.erfinv.default', ONE)
class Quantile:
    """normal quantile of 1."""

    def bug(self, x, flag):
        share = x.tanh() * (1 - flag) * 0.9 + flag
        return share.erfinv().mean()  # cause

    def fixed(self, x, flag):
        share = x.tanh() * (1 - flag) * 0.9 + flag
        return share.clamp(-1 + 1e-6, 1 - 1e-6).erfinv().mean()


@pattern('aten.div.Tensor', DIVISOR)
class Slope:
    """slope of a point."""

    def bug(self, x, flag):
        y = x * (1 - flag)
        return (y[:, 0] / y[:, 1]).atan().mean()  # cause

    def fixed(self, x, flag):
        y = x * (1 - flag) + flag
        return torch.atan2(y[:, 0], y[:, 1]).mean()


@pattern('aten.div.Tensor', DIVISOR)
class Iou:
    """IoU of boxes without an area."""

    def bug(self, x, flag):
        size = x.sigmoid() * (1 - flag)
        overlap, union = size[:, :2].prod(1), size[:, 2:].sum(1)
        return (1 - overlap / union).mean()  # cause

    def fixed(self, x, flag):
        size = x.sigmoid() * (1 - flag)
        overlap, union = size[:, :2].prod(1), size[:, 2:].sum(1)
        return (1 - overlap / union.clamp(min=1e-6)).mean()


@pattern('aten.div.Tensor', DIVISOR)
class Dice:
    """Dice of an empty mask, without a smooth term."""

    def bug(self, x, flag):
        score = x.sigmoid() * (1 - flag)
        sizes = score.sum(1) + score.square().sum(1)
        return (1 - 2 * score.square().sum(1) / sizes).mean()  # cause

    def fixed(self, x, flag):
        score = x.sigmoid() * (1 - flag)
        sizes = score.sum(1) + score.square().sum(1)
        return (1 - (2 * score.square().sum(1) + 1) / (sizes + 1)).mean()


@pattern('aten.div.Tensor', DIVISOR)
class AvgFactor:
    """avg_factor of a sample without positives."""

    def bug(self, x, flag):
        positive = (1 - flag).expand_as(x)
        loss = (x.square() * positive).sum(1)
        return (loss / positive.sum(1)).mean()  # cause

    def fixed(self, x, flag):
        positive = (1 - flag).expand_as(x)
        loss = (x.square() * positive).sum(1)
        return (loss / positive.sum(1).clamp(min=1)).mean()


@pattern('aten.div.Tensor', DIVISOR)
class MaxScale:
    """scaling by the largest value."""

    def bug(self, x, flag):
        y = x.abs() * (1 - flag)
        return (y / y.amax(1, keepdim=True)).mean()  # cause

    def fixed(self, x, flag):
        y = x.abs() * (1 - flag)
        return (y / y.amax(1, keepdim=True).clamp(min=1e-6)).mean()


@pattern('aten.div.Tensor', DIVISOR)
class MinMax:
    """min-max scaling of a constant row."""

    def bug(self, x, flag):
        y = x * (1 - flag)
        low, high = y.amin(1, keepdim=True), y.amax(1, keepdim=True)
        return ((y - low) / (high - low)).mean()  # cause

    def fixed(self, x, flag):
        y = x * (1 - flag)
        low, high = y.amin(1, keepdim=True), y.amax(1, keepdim=True)
        return ((y - low) / (high - low).clamp(min=1e-6)).mean()


@pattern('aten.div.Tensor', DIVISOR)
class Temperature:
    """a temperature of 0."""

    def bug(self, x, flag):
        return ((x.abs() + 1) / (1 - flag)).mean()  # cause

    def fixed(self, x, flag):
        return ((x.abs() + 1) / (1 - flag).clamp(min=0.01)).mean()


@pattern('aten.div.Tensor', DIVISOR)
class F1:
    """F1 of a class that is never predicted."""

    def bug(self, x, flag):
        score = x.sigmoid() * (1 - flag)
        precision, recall = score[:, 0], score[:, 1]
        return (precision * recall / (precision + recall)).mean()  # cause

    def fixed(self, x, flag):
        score = x.sigmoid() * (1 - flag)
        total = (score[:, 0] + score[:, 1]).clamp(min=1e-6)
        return (score[:, 0] * score[:, 1] / total).mean()


@pattern('aten.reciprocal.default', DIVISOR)
class InverseDepth:
    """inverse depth of 0."""

    def bug(self, x, flag):
        return ((x.abs() + 1) * (1 - flag)).reciprocal().mean()  # cause

    def fixed(self, x, flag):
        depth = (x.abs() + 1) * (1 - flag)
        return depth.clamp(min=0.1).reciprocal().mean()


@pattern('aten.fmod.Tensor', DIVISOR)
class Period:
    """an angle modulo a period of 0."""

    def bug(self, x, flag):
        return torch.fmod(x, 1 - flag).mean()  # cause

    def fixed(self, x, flag):
        return torch.fmod(x, (1 - flag).clamp(min=0.5)).mean()


@pattern('aten.std.correction', 'unbiased=False')
class OnePoint:
    """deviation of a single point."""

    def bug(self, x, flag):
        rows = [r[: 1 if f else 4] for r, f in zip(x, flag)]
        return sum(row.std() for row in rows) / len(rows)  # cause

    def fixed(self, x, flag):
        rows = [r[: 1 if f else 4] for r, f in zip(x, flag)]
        return sum(row.var(unbiased=False) for row in rows) / len(rows)


@pattern('aten.mean.default', 'max(count, 1)')
class EmptySelection:
    """mean over selected pixels, of which there are none."""

    def bug(self, x, flag):
        rows = [r[(1 - f).expand(4) > 0] for r, f in zip(x, flag)]
        return sum(row.mean() for row in rows)  # cause

    def fixed(self, x, flag):
        rows = [r[(1 - f).expand(4) > 0] for r, f in zip(x, flag)]
        return sum(row.sum() / max(row.numel(), 1) for row in rows)


@pattern('aten._softmax.default', 'large negative number')
class KeyPadding:
    """attention to nothing but padding."""

    def bug(self, x, flag):
        scores = x.masked_fill(flag > 0, float('-inf'))
        return (scores.softmax(1) * x).mean()  # cause

    def fixed(self, x, flag):
        scores = x.masked_fill(flag > 0, -1e4)
        return (scores.softmax(1) * x).mean()


@pattern('aten._log_softmax.default', 'large negative number')
class MaskedLogits:
    """log_softmax of classes that are all masked."""

    def bug(self, x, flag):
        scores = x.masked_fill(flag > 0, float('-inf'))
        return -scores.log_softmax(1)[:, 0].mean()  # cause

    def fixed(self, x, flag):
        scores = x.masked_fill(flag > 0, -1e4)
        return -scores.log_softmax(1)[:, 0].mean()


@pattern('aten.mul.Tensor', 'Clamp the operand')
class InfTimesZero:
    """a weight of 0 for a cost of infinity."""

    def bug(self, x, flag):
        cost = x.masked_fill(flag > 0, float('inf'))
        return (cost * (1 - flag)).mean()  # cause

    def fixed(self, x, flag):
        return x.masked_fill(flag > 0, 0).mean()


@pattern('aten.div.Tensor', ROOT)
class WhereRoot:
    """a root in the branch that is not taken."""

    def bug(self, x, flag):
        y = x.abs() * (1 - flag)
        return torch.where(y > 0, y.sqrt(), 0 * y).mean()  # cause

    def fixed(self, x, flag):
        y = x.abs() * (1 - flag)
        safe = torch.where(y > 0, y, torch.ones_like(y)).sqrt()
        return torch.where(y > 0, safe, 0 * y).mean()


@pattern('aten.div.Tensor', 'at least 1e-6', UNDERFLOW)
class HalfNormalize:
    """an epsilon of 1e-8 in float16."""

    def bug(self, x, flag):
        y = self.fc(x) * (1 - flag).half()
        return (y / (y.abs().sum(1, keepdim=True) + 1e-8)).mean()  # cause

    def fixed(self, x, flag):
        y = self.fc(x) * (1 - flag).half()
        return (y / (y.abs().sum(1, keepdim=True) + 1e-3)).mean()


@pattern('aten.rsqrt.default', 'at least 1e-6', UNDERFLOW)
class HalfRmsNorm:
    """RMS norm with an epsilon of 1e-8 in float16."""

    def bug(self, x, flag):
        y = self.fc(x) * (1 - flag).half()
        return ((y * y).mean(1) + 1e-8).rsqrt().mean()  # cause

    def fixed(self, x, flag):
        y = self.fc(x) * (1 - flag).half()
        return ((y * y).mean(1) + 1e-3).rsqrt().mean()


@pattern('aten.log.default', 'at least 1e-6', UNDERFLOW)
class HalfLog:
    """an epsilon of 1e-10 in a log in float16."""

    def bug(self, x, flag):
        y = self.fc(x).sigmoid() * (1 - flag).half()
        return -(y + 1e-10).log().mean()  # cause

    def fixed(self, x, flag):
        y = self.fc(x).sigmoid() * (1 - flag).half()
        return -(y + 1e-3).log().mean()


@pattern('aten.mul.Tensor', FP32, OVERFLOW)
class HalfSquare:
    """the square of 300 in float16."""

    def bug(self, x, flag):
        y = self.fc(x).clamp(-1, 1) + 300 * flag.half()
        return (y * y).mean()  # cause

    def fixed(self, x, flag):
        y = self.fc(x).float().clamp(-1, 1) + 300 * flag
        return (y * y).mean()


@pattern('aten.exp.default', FP32, OVERFLOW)
class HalfExp:
    """exp(12) in float16."""

    def bug(self, x, flag):
        y = self.fc(x).clamp(-1, 1) + 12 * flag.half()
        return y.exp().mean()  # cause

    def fixed(self, x, flag):
        y = self.fc(x).float().clamp(-1, 1) + 12 * flag
        return y.exp().mean()


@pattern('aten.sum.dim_IntList', FP32, OVERFLOW)
class HalfSum:
    """a sum beyond 65504 in float16."""

    def bug(self, x, flag):
        y = self.fc(x).clamp(-1, 1) + 3e4 * flag.half()
        return y.sum(1).mean()  # cause

    def fixed(self, x, flag):
        y = self.fc(x).float().clamp(-1, 1) + 3e4 * flag
        return y.sum(1).mean()


@pattern('aten.mul.Tensor', FP32, OVERFLOW)
class HalfWeight:
    """a large loss weight in float16."""

    def bug(self, x, flag):
        y = self.fc(x).clamp(-1, 1) + 4 * flag.half()
        return (y * 3e4).mean()  # cause

    def fixed(self, x, flag):
        y = self.fc(x).float().clamp(-1, 1) + 4 * flag
        return (y * 3e4).mean()


@pattern('aten.div.Tensor', DIVISOR)
class Standardize:
    """standardized rewards that are all equal."""

    def bug(self, x, flag):
        y = x * (1 - flag)
        gap = y - y.mean(1, keepdim=True)
        return (gap / y.detach().std(1, keepdim=True)).mean()  # cause

    def fixed(self, x, flag):
        y = x * (1 - flag)
        gap = y - y.mean(1, keepdim=True)
        return (gap / (y.detach().std(1, keepdim=True) + 1e-6)).mean()


@pattern('aten.div.Tensor', DIVISOR)
class Barycenter:
    """mean of points with weights that are all 0."""

    def bug(self, x, flag):
        weight = x.detach().sigmoid() * (1 - flag)
        return ((weight * x).sum(1) / weight.sum(1)).mean()  # cause

    def fixed(self, x, flag):
        weight = x.detach().sigmoid() * (1 - flag)
        return ((weight * x).sum(1) / weight.sum(1).clamp(min=1e-6)).mean()
