"""Find out why a step was bad, in bounded time."""

from __future__ import annotations

from typing import Any

from torch import Tensor
from torch.nn import Module

from mmstable.batches import batch_size
from mmstable.events.number_records import Verdict
from mmstable.forensics.birth import Birth, Origin
from mmstable.forensics.birth_mode import BirthMode, Watch
from mmstable.forensics.chain import find_culprit, follow
from mmstable.forensics.clock import Clock, OutOfTime
from mmstable.forensics.finding import Finding
from mmstable.forensics.frames import Place
from mmstable.forensics.local_ranks import CollectiveRefused
from mmstable.forensics.ranges import FINITE, severity
from mmstable.forensics.recorder import Backprop
from mmstable.forensics.replay import ReplayedStep, StepScene, replay_step
from mmstable.forensics.samples import find_samples
from mmstable.forensics.singular import singular_point
from mmstable.forensics.verdict import growing, judge
from mmstable.messages import _

_CASTS = ('_to_copy', 'copy', 'to')


class Investigation:
    """Looks for the cause of a bad step.

    Args:
        scenes (list[StepScene]): The step, or all those of an accumulation
            window, the newest last.
        wrapper (str, optional): The wrapper whose step was bad. Defaults to
            None.
        seconds (float): How long it may take. Defaults to 60.0.
    """

    def __init__(
        self,
        scenes: list[StepScene],
        wrapper: str | None = None,
        seconds: float = 60.0,
    ) -> None:
        self.scenes = scenes
        # The one that was bad.
        self.scene = scenes[-1]
        self._wrapper = wrapper
        # Whether the loss is fine, and only its gradient bad.
        self._by_gradient = False
        # That of the newest replay.
        self._mode: BirthMode | None = None
        self.clock = Clock(seconds)

    def run(self) -> Finding:
        """Replay the step, and judge what comes out."""
        try:
            return self._run()
        except OutOfTime:
            reason = _(
                'a replay takes more than {seconds:g} s',
                seconds=self.clock.limit,
            )
        except CollectiveRefused as error:
            reason = _(
                'the model waits for other ranks in {op}, which do not replay',
                op=error.op,
            )
        except Exception as error:
            # Whatever a model does: training is to continue.
            reason = _(
                'the replay failed: {error}',
                error=f'{type(error).__name__}: {error}',
            )
        return Finding(Verdict.NOT_EXAMINED, reason=reason)

    def _run(self) -> Finding:
        step, bad = self._find_bad()
        if step is None or bad is None:
            return Finding(Verdict.NOT_REPRODUCED)
        self._by_gradient = severity(bad.loss) == FINITE
        chain = follow(_ends(step, bad))
        culprit = find_culprit(chain)
        point = None
        if isinstance(culprit, Birth):
            point = singular_point(culprit)
        finding = Finding(
            judge(culprit, point, False), culprit, chain, point=point
        )
        try:
            finding.terms = bad.bad_terms or self._terms_of_gradient(bad)
            self._look_closer(finding)
        except OutOfTime:
            finding.notes.append(
                _('time was over before all samples were tried')
            )
        return finding

    def _find_bad(self) -> tuple[ReplayedStep | None, Backprop | None]:
        """The first scene that is bad again, and what is bad in it."""
        for scene in self.scenes:
            if len(self.scenes) > 1 and not self._happens(scene):
                continue
            self.scene = scene
            step = self._replay(scene)
            bad = step.first_bad(self._wrapper)
            if bad is not None:
                return step, bad
        return None, None

    def _happens(self, scene: StepScene) -> bool:
        self.clock.check()
        return replay_step(scene).first_bad(self._wrapper) is not None

    def _replay(
        self,
        scene: StepScene,
        watch: Watch | None = None,
        **options: Any,
    ) -> ReplayedStep:
        def make_mode(model: Module, batch: Any) -> BirthMode:
            self._mode = BirthMode(
                model, batch, batch_size(batch), watch, clock=self.clock
            )
            return self._mode

        self.clock.check()
        return replay_step(scene, make_mode=make_mode, **options)

    def _terms_of_gradient(self, bad: Backprop) -> tuple[str, ...]:
        """The terms of a finite loss whose own gradients are bad."""
        if len(bad.terms) < 2:
            return tuple(bad.terms)
        self.clock.check()
        step = replay_step(self.scene, by_term=True)
        again = step.first_bad(self._wrapper)
        if again is None:
            return ()
        return step.bad_terms.get(step.passes.index(again), ())

    def _look_closer(self, finding: Finding) -> None:
        culprit = finding.culprit
        if isinstance(culprit, Birth):
            self._compare_with_float32(finding, culprit)
            if finding.verdict is Verdict.EXPLODING:
                finding.peaks = growing(self._peaks())
        if culprit is not None:
            finding.samples = find_samples(
                self.scene, culprit, lambda some: self._is_same(some, culprit)
            )

    def _compare_with_float32(self, finding: Finding, culprit: Birth) -> None:
        """Whether the same batch is fine in float32, and what is there."""
        dtypes = {one.dtype for one in self.scene.setups.values()} - {None}
        if not dtypes:
            return
        peak = _Peak(culprit)
        step = self._replay(self.scene, peak.note, dtype='float32')
        if step.first_bad(self._wrapper) is not None:
            return
        if 'float16' in dtypes:
            finding.verdict = judge(culprit, finding.point, True)
        finding.largest = peak.value
        if culprit.name in _CASTS and culprit.inputs:
            finding.largest = max(one.peak for one in culprit.inputs)
        if finding.verdict is not Verdict.FP16_OVERFLOW:
            finding.notes.append(
                _(
                    'only in {dtype}: the same batch is finite in float32',
                    dtype=sorted(dtypes),
                )
            )

    def _peaks(self) -> list[tuple[str, float]]:
        """The largest output of every module, in the order of these."""
        peaks: dict[str, float] = {}

        def note(phase: str, op: str, place: Place, output: Tensor) -> None:
            name, peak = place.module or '', _peak_of(output)
            if peak > peaks.get(name, 0.0):
                # Where the largest ones came, not the first ones.
                peaks.pop(name, None)
                peaks[name] = peak

        self._replay(self.scene, note, with_gradients=False)
        return list(peaks.items())

    def _is_same(self, samples: list[int], culprit: Origin) -> bool:
        """Whether the same fault happens with some samples alone."""
        try:
            step = self._replay(
                self.scene.only(samples), with_gradients=self._by_gradient
            )
        except OutOfTime:
            raise
        except Exception:
            # BatchNorm, for one, refuses a single sample; but by then the
            # fault may have happened.
            born = self._mode.births if self._mode is not None else []
            if _signature(culprit) in map(_signature, born):
                return True
            is_pair = len(samples) != 1
            return not is_pair and self._is_same(samples * 2, culprit)
        bad = step.first_bad(self._wrapper)
        if bad is None:
            return False
        again = find_culprit(follow(_ends(step, bad)))
        return again is not None and _signature(again) == _signature(culprit)


class _Peak:
    """The largest value at the place of a birth."""

    def __init__(self, birth: Birth) -> None:
        self.value: float | None = None
        self._birth = birth

    def note(self, phase: str, op: str, place: Place, output: Tensor) -> None:
        birth = self._birth
        if (phase, place) == (birth.phase, birth.place):
            self.value = max(self.value or 0.0, _peak_of(output))


def _peak_of(tensor: Tensor) -> float:
    values = tensor.detach().abs()
    return float(values[values.isfinite()].amax()) if _any(values) else 0.0


def _any(values: Tensor) -> bool:
    return bool(values.isfinite().any())


def _ends(step: ReplayedStep, bad: Backprop) -> list[Origin]:
    mode = step.mode
    if mode is None:
        return []
    gradients = bad.bad_gradients.values()
    return list(mode.origins_of(bad.loss)) or [
        one for gradient in gradients for one in mode.origins_of(gradient)
    ]


def _signature(origin: Origin) -> tuple[Any, ...]:
    if isinstance(origin, Birth):
        return origin.phase, origin.op, origin.place
    return origin.source, origin.name
