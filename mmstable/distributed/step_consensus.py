"""What the ranks of a run have to agree on before and after a step."""

from __future__ import annotations

import hashlib
import platform
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from weakref import WeakSet

from mmengine.dist import get_rank, get_world_size
from torch import Tensor
from torch.nn import Module

from mmstable.checked_json import (
    boolean,
    integer,
    list_of,
    one_of,
    record,
    text,
    tuple_of,
)
from mmstable.distributed import collectives as dist
from mmstable.distributed.grad_probe import GradProbe, probe_before_reduction
from mmstable.distributed.parallelism import (
    Shards,
    Sharing,
    find_shards,
    find_sharing,
)
from mmstable.distributed.store import gather
from mmstable.errors import ReplicasDivergedError
from mmstable.events import Culprit, Origin
from mmstable.messages import _
from mmstable.messages.printable import printable

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
    def ran_out(self) -> bool:
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

    def learn(self, model: Module, asked_for_shards: bool) -> None:
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

    def look_at(self, model: Module) -> None:
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
        return bool(gather(topic, True, TIMEOUT, boolean, _all_came, boolean))

    def resolve_bad(
        self,
        losses_are_finite: bool,
        device: object,
        culprits: Sequence[Culprit] = (),
        ran_out: bool = False,
    ) -> Verdict | None:
        """Find out together what is wrong with a step.

        Args:
            losses_are_finite (bool): Whether those of this rank are.
            device (object): Where its gradients are.
            culprits (Sequence[Culprit]): What is not finite. Defaults to ().
            ran_out (bool): Whether its batch did not fit in memory. Defaults
                to False.

        Returns:
            Verdict or None: None if the others did not come: nothing is
            wrong there, they have updated their weights.
        """
        if get_world_size() == 1:
            return Verdict(not losses_are_finite)
        certain = not self.is_reduced
        word = self._word(losses_are_finite, device, ran_out)
        if certain:
            # Not the same on all ranks, as it is with DDP alone.
            word['culprits'] = _plain(culprits)
            word['sharded'] = self.is_sharded
        gathered = gather(
            f'{self._topic}/{self.steps}/bad',
            word,
            _CERTAIN if certain or self.is_behind else TIMEOUT,
            _WORD,
            _digest,
            _read,
        )
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
        self, dropped: bool, device: object, ran_out: bool = False
    ) -> tuple[Origin, ...]:
        """Find out where iterations were left out of an applied step.

        Args:
            dropped (bool): Whether this rank left out any.
            device (object): Where its gradients are.
            ran_out (bool): Whether one did not fit in memory. Defaults to
                False.
        """
        if get_world_size() == 1:
            return ()
        where = ''
        if dropped:
            where = 'memory' if ran_out else 'loss'
        gathered = gather(
            f'{self._topic}/{self.steps}/dropped',
            _describe(device, where),
            _CERTAIN,
            _WORD,
            _digest,
            _read,
        )
        return () if gathered is None else gathered.origins

    def _word(
        self, losses_are_finite: bool, device: object, ran_out: bool
    ) -> dict[str, Any]:
        if self.is_behind:
            where = 'reduced_gradient'
        elif ran_out:
            where = 'memory'
        elif not losses_are_finite:
            where = 'loss'
        elif any(look.found_bad() for look in self.looks):
            where = 'gradient'
        else:
            where = ''
        return dict(
            _describe(device, where),
            behind=self.is_behind,
            culprits=_plain(self._missed),
        )


def _all_came(words: Mapping[int, bool]) -> bool:
    return all(words.values())


def _describe(device: object, where: str) -> dict[str, Any]:
    """What this rank has to say."""
    return dict(
        node=platform.node()[:_LONGEST_NAME],
        device=str(device),
        where=where,
        behind=False,
        culprits=[],
        sharded=False,
    )


def _topic_for(model: Module) -> str:
    """A name for a new wrapper that is the same on all ranks."""
    # Not by shapes: those of shards are not the same.
    names = '\n'.join(name for name, __ in model.named_parameters())
    name = hashlib.sha256(names.encode()).hexdigest()[:16]
    _WRAPPERS[name] += 1
    return f'{name}/{_WRAPPERS[name]}'


def _plain(culprits: Sequence[Culprit]) -> list[list[str]]:
    return [
        [culprit.name[:_LONGEST_NAME], culprit.kind]
        for culprit in culprits[:_MOST_CULPRITS]
    ]


def _digest(words: Mapping[int, dict[str, Any]]) -> dict[str, Any]:
    """What matters to all, however many ranks have something to say."""
    named = [
        _place(rank, word, word['where'])
        for rank, word in words.items()
        if word['where']
    ]
    holders = [
        _place(rank, word, 'reduced_gradient')
        for rank, word in words.items()
        if word['culprits']
    ]
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


def _place(rank: int, word: dict[str, Any], where: str) -> list[Any]:
    return [rank, word['node'], word['device'], where]


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
