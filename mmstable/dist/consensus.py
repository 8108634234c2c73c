"""What the ranks of a run agree on, before and after a step.

A probe looks at the gradients of each rank before DDP averages them.
"""

from __future__ import annotations

import hashlib
import platform
from collections import Counter, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary, WeakSet

import torch
from mmengine.dist import get_rank, get_world_size
from torch import Tensor, distributed
from torch.nn import Module
from torch.nn.parallel import DistributedDataParallel

from mmstable.dist import collectives as dist
from mmstable.dist.collectives import (
    Shards,
    Sharing,
    find_shards,
    find_sharing,
)
from mmstable.dist.store import gather
from mmstable.errors import ReplicasDivergedError
from mmstable.events import Culprit, Origin
from mmstable.io.schema import (
    boolean,
    integer,
    list_of,
    one_of,
    record,
    text,
    tuple_of,
)
from mmstable.messages import _, printable

# Buckets whose extremes are kept: far more than one step has.
_MOST_BUCKETS = 4096


class GradProbe:
    """Remembers whether this rank's own gradients were finite.

    It takes the place in DDP that torch has for a communication hook, reads
    every bucket once and then averages it as DDP does, bit by bit. Nothing
    is waited for.
    """

    def __init__(self) -> None:
        self._extremes: deque[Tensor] = deque(maxlen=_MOST_BUCKETS)

    def found_bad(self) -> bool:
        """Whether there was a NaN or an Inf; waits for the device."""
        if not self._extremes:
            return False
        return not bool(torch.isfinite(torch.stack([*self._extremes])).all())

    def forget(self) -> None:
        """A new step begins."""
        self._extremes.clear()

    def reduce(
        self, bucket: distributed.GradBucket
    ) -> torch.futures.Future[Tensor]:
        """Look, then average over all ranks."""
        values = bucket.buffer()
        # One read pass, exact, and a NaN shows in both.
        least, most = torch.aminmax(values)
        self._extremes.append(torch.stack([least, most]).float())
        # As DDP itself: a division would round differently.
        values.mul_(1.0 / get_world_size())
        work = distributed.all_reduce(values, async_op=True)
        return work.get_future().then(_first)


def _first(future: torch.futures.Future[list[Tensor]]) -> Tensor:
    return future.value()[0]


# DDP has one place for a hook, but several wrappers may train one model.
_LOOKS: WeakKeyDictionary[Module, GradProbe] = WeakKeyDictionary()


def probe_before_reduction(model: Module) -> list[GradProbe]:
    """Look at the gradients of all DDP modules in a model from now on.

    One that has a communication hook already is left alone.
    """
    found = []
    for module in model.modules():
        if not isinstance(module, DistributedDataParallel):
            continue
        if module not in _LOOKS and _is_free(module):
            look = GradProbe()
            try:
                # torch does not understand annotations that are text.
                module.register_comm_hook(
                    look, lambda state, bucket: state.reduce(bucket)
                )
                _LOOKS[module] = look
            except RuntimeError:
                # torch 2.1 has no list of hooks, and refuses a second one.
                if hasattr(module, '_comm_hooks'):
                    raise
        if module in _LOOKS:
            found.append(_LOOKS[module])
    return found


def _is_free(module: DistributedDataParallel) -> bool:
    # A group of its own, or buckets in other types, are for DDP to handle.
    return (
        not getattr(module, '_comm_hooks', [])
        and module.process_group is distributed.group.WORLD
        and module.mixed_precision is None
    )


# Seconds until a rank takes a fault for its own: all get their averaged
# gradients at about the same time.
TIMEOUT = 10.0
# The same where it is known that all ranks are on their way.
_CERTAIN = 300.0
# Ranks that a report names, and parameters that only they can see.
_MOST_ORIGINS, _MOST_CULPRITS = 16, 64
# Characters of a name of a machine, a device or a parameter.
_LONGEST_NAME = 500
# Where a fault can begin.
_WHERE = ('loss', 'gradient', 'reduced_gradient', 'memory')
# Wrappers of this process, by the model that they train.
_WRAPPERS: Counter[str] = Counter()


@dataclass(frozen=True)
class Verdict:
    """What the ranks found out together about a bad step.

    Args:
        loss_is_bad (bool): Whether it began with a loss.
        origins (tuple[Origin]): Where it began. Defaults to ().
        culprits (tuple[Culprit]): What only those ranks could see.
            Defaults to ().
        behind (frozenset[int]): Ranks that missed the last update.
            Defaults to frozenset().
    """

    loss_is_bad: bool
    origins: tuple[Origin, ...] = ()
    culprits: tuple[Culprit, ...] = ()
    behind: frozenset[int] = frozenset()

    @property
    def leader(self) -> int | None:
        """The rank to copy from; None if all are alike."""
        ahead = set(range(get_world_size())) - self.behind
        return min(ahead) if self.behind and ahead else None

    @property
    def had_oom(self) -> bool:
        """Whether it is about a batch that did not fit in memory."""
        return any(origin.where == 'memory' for origin in self.origins)


class StepConsensus:
    """One optimizer's part in what the ranks decide together.

    With DDP every rank sees the same gradients and so comes to the same
    verdict without asking. A rank that alone finds a NaN in them, as after a
    fault of its memory, notices that the others do not come to talk about
    it: they have updated their weights. It then spoils its next gradients,
    so that all ranks skip that step, and it gets what it missed.
    """

    def __init__(self) -> None:
        self.sharing = Sharing.ALONE
        self.shards = Shards()
        self._topic = ''
        self._syncs_batch_norm = False
        self._models: WeakSet[Module] = WeakSet()
        # Steps that were judged, on all ranks.
        self.steps = 0
        # Probes of this rank's own gradients.
        self.looks: list[GradProbe] = []
        # Whether this rank missed the last update, and what it found.
        self.is_behind = False
        self._missed: tuple[Culprit, ...] = ()

    @property
    def sharing(self) -> Sharing:
        """How the ranks share gradients."""
        return self._sharing

    @sharing.setter
    def sharing(self, sharing: Sharing) -> None:
        self._sharing = sharing
        # Every rank holds its own part of the gradients.
        self.is_sharded = sharing is Sharing.SHARDED
        # All ranks hold the same gradients.
        self.is_reduced = sharing is Sharing.REDUCED
        # All ranks see the same norm of all gradients.
        self.share_gradients = self.is_reduced or self.is_sharded
        # Nobody knows: ranks have to ask each other.
        self.must_vote = sharing is Sharing.APART

    def bind_model(self, model: Module, asked_for_shards: bool) -> None:
        """Find out how the gradients of a model are shared.

        Args:
            model (Module): The model, in its wrapper.
            asked_for_shards (bool): Whether the user says that every rank
                holds its own part.
        """
        found = find_sharing(model)
        if not self._topic and found is not Sharing.ALONE:
            self._topic = _topic_for(model)
        self._syncs_batch_norm |= any(
            'SyncBatchNorm' in type(module).__name__
            for module in model.modules()
        )
        if found is not Sharing.APART or self.sharing is Sharing.ALONE:
            # Parts of a model, as in a GAN, come without their wrapper.
            self.sharing = found
        if asked_for_shards and found is not Sharing.ALONE:
            self.sharing = Sharing.SHARDED
        if self.is_sharded:
            self.shards = find_shards(model)

    def attach_probe(self, model: Module) -> None:
        """See a rank's own gradients before they are averaged."""
        if self.is_reduced and model not in self._models:
            self._models.add(model)
            for look in probe_before_reduction(model):
                if look not in self.looks:
                    self.looks.append(look)

    @property
    def backward_is_local(self) -> bool:
        """Whether a rank can leave out a backward pass by itself.

        It can where no other rank waits for it: inside ``no_sync`` of DDP,
        if no layer talks to other ranks while it back-propagates.
        """
        if get_world_size() == 1:
            return True
        return self.is_reduced and not self._syncs_batch_norm

    def end_step(self) -> None:
        """Forget the gradients that were judged."""
        for look in self.looks:
            look.forget()

    def total_dropped(self, dropped: int) -> int:
        """Iterations that all ranks left out of a window. A collective."""
        return dist.sum_of_ranks(dropped)

    def total_norms(self, norms: Tensor, norm_type: float) -> Tensor:
        """Norms of what all ranks hold together. A collective if sharded."""
        if not self.is_sharded:
            return norms
        return self.shards.total_norms(norms, norm_type)

    def is_bad(self, found: bool) -> bool:
        """Whether a norm that is not finite means bad gradients.

        A collective if sharded: there all ranks have the same norms, but
        only one may hold what is wrong with them.
        """
        return dist.any_rank(found) if self.is_sharded else found

    def vote(self, bad: bool, unwanted: bool) -> list[bool]:
        """What becomes of a step on all ranks. A collective call.

        Args:
            bad (bool): Whether its gradients are not finite.
            unwanted (bool): Whether it is to be skipped nevertheless.
        """
        return dist.any_rank_each(bad, unwanted)

    def agree_on_spike(self) -> bool:
        """Whether all ranks have found the norm of a step too large.

        All have the same norm, but machines may differ in the last bit of
        it. If one of them does not come, it has updated its weights.
        """
        if not self.is_reduced or get_world_size() == 1:
            return True
        topic = f'{self._topic}/{self.steps}/spike'
        # The digest is made of all flags, so all have come.
        return bool(gather(topic, True, TIMEOUT, boolean, bool, boolean))

    def resolve_bad(
        self,
        losses_are_finite: bool,
        device: object,
        culprits: Sequence[Culprit] = (),
        had_oom: bool = False,
    ) -> Verdict | None:
        """Find out together what is wrong with a step.

        Args:
            losses_are_finite (bool): Whether those of this rank are.
            device (object): Where its gradients are.
            culprits (Sequence[Culprit]): What is not finite. Defaults to ().
            had_oom (bool): Whether its batch did not fit in memory. Defaults
                to False.

        Returns:
            Verdict or None: None if the others did not come: nothing is
            wrong there, they have updated their weights.
        """
        if get_world_size() == 1:
            return Verdict(not losses_are_finite)
        certain = not self.is_reduced
        where = self._where(losses_are_finite, had_oom)
        # With DDP alone all ranks have the same culprits.
        own = culprits if certain else self._missed
        word = self._word(device, where, own)
        timeout = _CERTAIN if certain or self.is_behind else TIMEOUT
        gathered = self._gather('bad', word, timeout)
        if gathered is None and self.is_behind:
            raise ReplicasDivergedError(
                _(
                    'this rank has missed an update, and the others do not '
                    'come to give it what it missed.'
                )
            )
        if gathered is None and not certain:
            self.is_behind = True
            self._missed = tuple(culprits[:_MOST_CULPRITS])
            return None
        self.is_behind, self._missed = False, ()
        return gathered or _read(_digest({get_rank(): word}))

    def resolve_dropped(
        self, dropped: bool, device: object, had_oom: bool = False
    ) -> tuple[Origin, ...]:
        """Find out where iterations were left out of an applied step.

        Args:
            dropped (bool): Whether this rank left out any.
            device (object): Where its gradients are.
            had_oom (bool): Whether one did not fit in memory. Defaults to
                False.
        """
        if get_world_size() == 1:
            return ()
        where = ('memory' if had_oom else 'loss') if dropped else ''
        word = self._word(device, where)
        gathered = self._gather('dropped', word, _CERTAIN)
        return () if gathered is None else gathered.origins

    def _where(self, losses_are_finite: bool, had_oom: bool) -> str:
        """Where a bad step began, as far as this rank knows."""
        if self.is_behind:
            return 'reduced_gradient'
        if had_oom:
            return 'memory'
        if not losses_are_finite:
            return 'loss'
        return 'gradient' if any(one.found_bad() for one in self.looks) else ''

    def _word(
        self, device: object, where: str, culprits: Sequence[Culprit] = ()
    ) -> dict[str, Any]:
        """Describe this rank's part in a step."""
        return dict(
            node=platform.node()[:_LONGEST_NAME],
            device=str(device),
            where=where,
            behind=self.is_behind,
            culprits=[
                [culprit.name[:_LONGEST_NAME], culprit.kind]
                for culprit in culprits[:_MOST_CULPRITS]
            ],
            sharded=self.is_sharded,
        )

    def _gather(
        self, topic: str, word: dict[str, Any], timeout: float
    ) -> Verdict | None:
        topic = f'{self._topic}/{self.steps}/{topic}'
        return gather(topic, word, timeout, _WORD, _digest, _read)


def _topic_for(model: Module) -> str:
    """A name for a new wrapper that is the same on all ranks."""
    # Not by shapes: those of shards are not the same.
    names = '\n'.join(name for name, __ in model.named_parameters())
    name = hashlib.sha256(names.encode()).hexdigest()[:16]
    _WRAPPERS[name] += 1
    return f'{name}/{_WRAPPERS[name]}'


def _digest(words: Mapping[int, dict[str, Any]]) -> dict[str, Any]:
    """What matters to all, however many ranks have something to say."""
    named, holders = [], []
    for rank, word in words.items():
        place = [rank, word['node'], word['device']]
        if word['where']:
            named.append([*place, word['where']])
        if word['culprits']:
            holders.append([*place, 'reduced_gradient'])
    sharded = any(word['sharded'] for word in words.values())
    if not named and len(holders) < len(words) and not sharded:
        # Averaged gradients are the same everywhere, except for these.
        named = holders
    culprits = {
        tuple(culprit): None
        for word in words.values()
        for culprit in word['culprits']
    }
    return dict(
        loss_is_bad=any(where == 'loss' for *__, where in named),
        origins=named[:_MOST_ORIGINS],
        culprits=[list(one) for one in culprits][:_MOST_CULPRITS],
        behind=[rank for rank, word in words.items() if word['behind']],
    )


_NAME = text(_LONGEST_NAME)
_CULPRITS = list_of(tuple_of(_NAME, one_of('NaN', 'Inf')), _MOST_CULPRITS)
_WORD = record(
    node=_NAME,
    device=_NAME,
    where=one_of('', *_WHERE),
    behind=boolean,
    culprits=_CULPRITS,
    sharded=boolean,
)


def _read(digest: Any) -> Verdict:
    """A digest that came out of the store."""
    ranks = get_world_size()
    rank = integer(0, ranks - 1)
    origin = tuple_of(rank, _NAME, _NAME, one_of(*_WHERE))
    known = record(
        loss_is_bad=boolean,
        origins=list_of(origin, _MOST_ORIGINS),
        culprits=_CULPRITS,
        behind=list_of(rank, ranks),
    )(digest)
    return Verdict(
        loss_is_bad=known['loss_is_bad'],
        origins=tuple(
            Origin(rank, printable(node), printable(device), where)
            for rank, node, device, where in known['origins']
        ),
        culprits=tuple(
            Culprit(printable(name), kind) for name, kind in known['culprits']
        ),
        behind=frozenset(known['behind']),
    )
