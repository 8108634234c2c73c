"""Small models, each with one cause of NaN or Inf planted in it.

The cause shows in the second batch of four samples, mostly in sample 2 of
these. ``flag`` is 1 for that sample and 0 for all others. The line to blame
is marked.
"""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from mmengine.model import BaseModel
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint


class Head(nn.Module):
    """A head with one healthy loss and one that may be bad."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(4, 4)

    def loss(self, x: Tensor, flag: Tensor) -> dict[str, Any]:
        """The losses of a batch."""
        return {
            'loss_good': self.fc(x).float().square().mean(),
            'loss_bad': self.bad(x, flag).float(),
        }

    def bad(self, x: Tensor, flag: Tensor) -> Tensor:
        """The loss with the cause in it."""
        raise NotImplementedError


class Exp(Head):
    """exp(12) is beyond float16."""

    def bad(self, x, flag):
        x = self.fc(x)
        x = x.clamp(-0.1, 0.1) + 12 * flag.to(x.dtype)
        return torch.exp(x).mean()  # cause


class Pow(Head):
    """400 squared is beyond float16."""

    def bad(self, x, flag):
        x = self.fc(x)
        x = x.clamp(-1, 1) + 400 * flag.to(x.dtype)
        return (x * x).mean().square()  # cause


class Cast(Head):
    """Autocast casts the input of a layer."""

    def bad(self, x, flag):
        x = x.float() * (1 + 1e6 * flag)
        return self.fc(x).float().clamp(-1, 1).mean()  # cause


class MaskedSoftmax(Head):
    """One row is masked everywhere; another mask is harmless."""

    def bad(self, x, flag):
        keys = torch.arange(4) < 2
        harmless = x.masked_fill(keys, float('-inf')).softmax(-1)
        row = x.masked_fill(flag > 0, float('-inf'))
        return (row.softmax(-1) * harmless).sum(-1).mean()  # cause


class Log(Head):
    """log(0)."""

    def bad(self, x, flag):
        chance = x.sigmoid() * (1 - flag)
        return -chance.log().mean()  # cause


class EmptyMask(Head):
    """Each sample is divided by the size of its mask."""

    def bad(self, x, flag):
        mask = (1 - flag).expand_as(x)
        total = (x * mask).sum(1)
        return (total / mask.sum(1)).mean()  # cause


class EmptyBatchMask(Head):
    """No sample of the batch has a mask."""

    def bad(self, x, flag):
        mask = (flag.sum() == 0) * torch.ones(len(x), 1)
        return (x.sum(1, keepdim=True) * mask).sum() / mask.sum()  # cause


class InPlace(Head):
    """An operation that overwrites its operand."""

    def bad(self, x, flag):
        chance = x.sigmoid() * (1 - flag)
        chance += 0
        chance.log_()  # cause
        return -chance.mean()


class AheadOfNorm(Head):
    """BatchNorm spreads what one sample has brought."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(4)

    def bad(self, x, flag):
        x = (x.sigmoid() * (1 - flag)).log()  # cause
        return self.norm(x).square().mean()


class MaskBuffer(Head):
    """A mask that the model keeps, and a sample that hides the rest."""

    def __init__(self) -> None:
        super().__init__()
        mask = torch.zeros(4).index_fill(0, torch.tensor([3]), float('-inf'))
        self.register_buffer('mask', mask)

    def bad(self, x, flag):
        scores = x + self.mask
        hidden = (flag > 0) & (torch.arange(4) < 3)
        scores = torch.where(hidden, float('-inf'), scores)
        return (scores.softmax(-1) * x).mean()  # cause


class Sqrt(Head):
    """The derivative of sqrt at 0."""

    def bad(self, x, flag):
        return (x.square() * (1 - flag)).sqrt().mean()  # cause


class Norm(Head):
    """The derivative of a norm at 0."""

    def bad(self, x, flag):
        kept = x * (1 - flag)
        return kept.square().sum(-1).pow(0.5).mean()  # cause


class AcosBeyond(Head):
    """acos of more than 1."""

    def bad(self, x, flag):
        cosine = x.tanh() * 0.5 * (1 - flag) + 1.001 * flag
        return cosine.acos().mean()  # cause


class AcosEdge(Head):
    """The derivative of acos at 1."""

    def bad(self, x, flag):
        cosine = x.tanh() * 0.5 * (1 - flag) + flag
        return torch.acos(cosine).mean()  # cause


class Angle(Head):
    """An angle by hand, where torch.atan2 is harmless at (0, 0)."""

    def bad(self, x, flag):
        x = x * (1 - flag)
        harmless = torch.atan2(x[:, 0], x[:, 1])
        slope = x[:, 2] / x[:, 3]  # cause
        return (harmless + slope.atan()).mean()


class Atan2(Head):
    """torch hides the infinity in the derivative at (0, 0)."""

    def bad(self, x, flag):
        x = x * (1 - flag)
        return torch.atan2(x[:, 0], x[:, 1]).mean()


class SafeNorm(Head):
    """torch hides the infinity in the derivative of a norm at 0."""

    def bad(self, x, flag):
        return (x * (1 - flag)).norm(dim=-1).mean()


class BatchStatistics(Head):
    """BatchNorm by hand: one value per channel has no variance."""

    def bad(self, x, flag):
        rows = x if flag.sum() == 0 else x[flag[:, 0] > 0]
        if len(rows) == 0:
            return x.mean()
        mean, var = rows.mean(0), rows.var(0)  # cause
        return ((x - mean) / (var + 1e-5).sqrt()).square().mean()


class OneStd(Head):
    """The standard deviation of a group of one."""

    def bad(self, x, flag):
        group = x[flag[:, 0] > 0, 0]
        return group.std() if len(group) else x.mean()  # cause


class FrozenNorm(Head):
    """BatchNorm in evaluation mode."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(4)

    def bad(self, x, flag):
        self.norm.eval()
        return self.norm(x).square().mean()


class Plain(Head):
    """Nothing is wrong with it."""

    def bad(self, x, flag):
        hidden = x.masked_fill(torch.arange(4) > 2, float('-inf'))
        return (hidden.softmax(-1) * self.fc(x)).square().mean()


class Deep(Head):
    """Layer after layer, with nothing to hold them."""

    def __init__(self) -> None:
        super().__init__()
        self.fc2 = nn.Linear(4, 4)

    def loss(self, x, flag):
        return {'loss_bad': self.fc2(self.fc(x)).square().mean()}  # cause


class Flaky(Head):
    """Fails once, whatever it gets."""

    def __init__(self) -> None:
        super().__init__()
        self.calls = 0

    def bad(self, x, flag):
        self.calls += 1
        scale = math.nan if self.calls == 2 else 1.0
        return x.mean() * scale


class Ratio(torch.autograd.Function):
    """A function whose own derivative divides by 0."""

    @staticmethod
    def forward(ctx, x, flag):
        ctx.save_for_backward(flag)
        return x + flag

    @staticmethod
    def backward(ctx, grad):
        (flag,) = ctx.saved_tensors
        return grad / (1 - flag), None  # cause


class OwnFunction(Head):
    """Uses a custom autograd function."""

    def bad(self, x, flag):
        return Ratio.apply(x, flag.expand_as(x)).mean()


class Checkpointed(Head):
    """The cause is inside a checkpoint."""

    reentrant = False

    def bad(self, x, flag):
        return checkpoint(self.inner, x, flag, use_reentrant=self.reentrant)

    def inner(self, x, flag):
        return (x.square() * (1 - flag)).sqrt().mean()  # cause


class CheckpointedOld(Checkpointed):
    """The same with the older kind of checkpoint."""

    reentrant = True


class ListOfLosses(Head):
    """One of several losses of the same name."""

    def loss(self, x, flag):
        chance = x.sigmoid()
        return {
            'loss_good': self.fc(x).square().mean(),
            'loss_aux': [
                chance.log().mean(),
                (chance * (1 - flag)).log().mean(),  # cause
                (1 - chance).log().mean(),
            ],
        }


class Trap(Head):
    """`where` hides log(0) in the forward pass, but not its derivative."""

    def bad(self, x, flag):
        chance = x.sigmoid() * (1 - flag)
        return torch.where(flag > 0, chance, chance.log()).mean()  # cause


class SavedTrap(Head):
    """The same with a value that the backward pass gets from the forward."""

    def bad(self, x, flag):
        large = (x + 100 * flag).exp()  # cause
        return torch.where(flag > 0, x, large).mean()


class Dice(Head):
    """The Dice loss without an epsilon, on an empty mask."""

    def bad(self, x, flag):
        chance = x.sigmoid() * (1 - flag)
        target = (1 - flag).expand_as(x)
        overlap = 2 * (chance * target).sum(1)
        total = chance.square().sum(1) + target.square().sum(1)
        return (1 - overlap / total).mean()  # cause


class Lovasz(Head):
    """The Lovasz loss of a class that is not there."""

    def bad(self, x, flag):
        return sum(map(self.of_one, x.sigmoid(), flag)) / len(x)

    def of_one(self, chance, flag):
        target = (1 - flag).expand_as(chance) * torch.tensor([1.0, 0, 1, 0])
        errors, order = (target - chance).abs().sort(descending=True)
        truth = target[order]
        jaccard = truth.cumsum(0) / truth.sum()  # cause
        return (errors * jaccard).sum()


class Focal(Head):
    """The focal loss of a probability that is exactly 0."""

    def bad(self, x, flag):
        chance = x.sigmoid() * (1 - flag)
        return -((1 - chance).pow(2) * chance.log()).mean()  # cause


class NoTarget(Head):
    """Cross entropy of labels that are all ignored."""

    def bad(self, x, flag):
        label = (255 * flag[:, 0]).long()
        losses = [
            F.cross_entropy(a[None], b[None], ignore_index=255)  # cause
            for a, b in zip(self.fc(x), label)
        ]
        return (sum(losses) / len(losses)).square()


class EmptyMean(Head):
    """The mean over the positives, of which there are none."""

    def bad(self, x, flag):
        chosen = [one[one > 1e4 * bad] for one, bad in zip(x, flag)]
        means = [one.mean() for one in chosen]  # cause
        return x.square().mean() * sum(means)


class Together(Head):
    """It takes two samples, neither of which is bad alone."""

    def bad(self, x, flag):
        return x.mean() / (2 - flag.sum())  # cause


class OutsideTensor(Head):
    """A table that no operation of torch has made."""

    def bad(self, x, flag):
        import numpy as np

        table = np.ones(4, dtype=np.float32)
        if flag.sum():
            table[1] = np.nan
        return (x * torch.from_numpy(table)).mean()


class Planted(BaseModel):
    """A backbone and a head.

    Args:
        head (Head): The head.
    """

    def __init__(self, head: Head) -> None:
        super().__init__()
        self.backbone = nn.Linear(4, 4)
        self.head = head

    def forward(self, inputs, data_samples, mode='loss'):
        x = self.backbone(torch.stack(inputs).float())
        flag = torch.stack([one.flag for one in data_samples])
        weight = torch.stack([one.weight for one in data_samples])
        losses = self.head.loss(x, flag)
        return {'loss_main': (x * weight).square().mean(), **losses}


class Gan(BaseModel):
    """Two optimizers; the discriminator's loss is bad."""

    def __init__(self) -> None:
        super().__init__()
        self.gen, self.disc = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, inputs, data_samples, mode='loss'):
        return self.disc(self.gen(torch.stack(inputs)))

    def train_step(self, data, optim_wrapper):
        data = self.data_preprocessor(data, True)
        inputs = torch.stack(data['inputs'])
        flag = torch.stack([one.flag for one in data['data_samples']])
        gen, disc = optim_wrapper['gen'], optim_wrapper['disc']
        with gen.optim_context(self):
            loss_gen = self.disc(self.gen(inputs)).square().mean()
        gen.update_params(loss_gen)
        with disc.optim_context(self):
            loss_disc = self.judge(self.gen(inputs).detach(), flag)
        disc.update_params(loss_disc)
        return {'loss_gen': loss_gen, 'loss_disc': loss_disc}

    def judge(self, fake, flag):
        """The discriminator's loss."""
        score = self.disc(fake).sigmoid() * (1 - flag)
        return -score.log().mean()  # cause
