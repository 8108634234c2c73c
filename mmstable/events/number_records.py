"""What is known of numbers that are not finite, or soon will not be."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from mmstable.events.event import Event
from mmstable.events.step_report import Fault, Word


class Verdict(Word):
    """What a fault can come from."""

    FP16_OVERFLOW = 'fp16_overflow'
    BAD_INPUT = 'bad_input'
    BAD_WEIGHTS = 'bad_weights'
    # An operation that is not defined for what it was given, as log(0).
    SINGULAR_POINT = 'singular_point'
    EXPLODING = 'exploding'
    # The same batch with the same state is fine: hardware, or chance.
    NOT_REPRODUCED = 'not_reproduced'
    # It was not examined, for the given reason.
    NOT_EXAMINED = 'not_examined'


@dataclass(frozen=True)
class FaultExplained(Event):
    """What NanForensicsHook has found out about a bad step.

    Args:
        fault (Fault): The fault.
        verdict (Verdict): What it comes from.
        text (str): The same in words, in the language of the run.
        rank (int): The process that it happened to. Defaults to 0.
        wrapper (str): Name of the optimizer wrapper. Defaults to ''.
        kind (str): 'NaN' or 'Inf', whichever came first. Defaults to ''.
        phase (str): 'forward' or 'backward'. Defaults to ''.
        op (str): The operation that it was born in, as 'aten.div.Tensor'.
            Defaults to ''.
        node (str): In the backward pass, the autograd node. Defaults to ''.
        module (str): The innermost module, '' for the model itself. Defaults
            to ''.
        lines (tuple[str]): File, line and code; two if the first is in a
            library. Defaults to ().
        source (str): What was bad before the step, if it was: 'parameter',
            'buffer', 'batch' or 'outside'. Defaults to ''.
        name (str): The name of that. Defaults to ''.
        inputs (tuple[str]): Ranges of the operation's inputs. Defaults to ().
        output (str): Range of its output. Defaults to ''.
        bad_share (float): The share of that which is not finite. Defaults to
            0.0.
        loss_terms (tuple[str]): The terms of the loss that it reached.
            Defaults to ().
        samples (tuple[int]): Indices of the samples in the batch. Defaults
            to ().
        sample_names (tuple[str]): What these are called. Defaults to ().
        only_together (bool): Whether it takes other samples besides these.
            Defaults to False.
        largest (float, optional): The value that was too large. Defaults to
            None.
        since (int, optional): Since which iteration weights are bad. Defaults
            to None.
        chain (tuple[str]): All births on the way to the loss or gradient, the
            earliest first. Defaults to ().
        notes (tuple[str]): What limits this finding. Defaults to ().
        bundle (str, optional): The folder to replay it from. Defaults to
            None.
        seconds (float): How long it took. Defaults to 0.0.
    """

    event: ClassVar[str] = 'fault_explained'

    fault: Fault
    verdict: Verdict
    text: str
    rank: int = 0
    wrapper: str = ''
    kind: str = ''
    phase: str = ''
    op: str = ''
    node: str = ''
    module: str = ''
    lines: tuple[str, ...] = ()
    source: str = ''
    name: str = ''
    inputs: tuple[str, ...] = ()
    output: str = ''
    bad_share: float = 0.0
    loss_terms: tuple[str, ...] = ()
    samples: tuple[int, ...] = ()
    sample_names: tuple[str, ...] = ()
    only_together: bool = False
    largest: float | None = None
    since: int | None = None
    chain: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    bundle: str | None = None
    seconds: float = 0.0


@dataclass(frozen=True)
class LowHeadroom(Event):
    """Values that come close to an end of the range of their type.

    Args:
        problem (str): 'overflow', or 'underflow' of gradients.
        module (str): The module; of an underflow, the worst one.
        kind (str): 'output', 'gradient' of that, or 'input' if that is cast
            to the type.
        dtype (str): The type, as 'float16'.
        share (float): Of an overflow that is to come, the largest value as a
            share of the range; of an underflow, the share of gradients that
            became zero.
        doubling (float, optional): Iterations in which the largest value
            doubles, if it grows. Defaults to None.
        left (float, optional): Iterations until it overflows, if that goes
            on. Defaults to None.
        loss_scale (float, optional): The loss scale of the iteration.
            Defaults to None.
    """

    event: ClassVar[str] = 'low_headroom'

    problem: str
    module: str
    kind: str
    dtype: str
    share: float
    doubling: float | None = None
    left: float | None = None
    loss_scale: float | None = None
