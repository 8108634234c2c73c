"""Where bad values come from: an operation, or outside of all of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Union

from mmstable.forensics.frames import Place
from mmstable.forensics.ranges import Range

FORWARD, BACKWARD = 'forward', 'backward'
# What an external tensor can be.
PARAMETER, BUFFER, BATCH, OUTSIDE = 'parameter', 'buffer', 'batch', 'outside'


@dataclass(frozen=True, eq=False)
class Birth:
    """An operation whose output is worse than all of its inputs.

    NaN is worse than Inf, which is worse than anything finite.

    Args:
        order (int): Later births have larger numbers.
        kind (str): 'NaN' or 'Inf'.
        phase (str): 'forward' or 'backward'.
        op (str): The operation, as 'aten.div.Tensor'.
        place (Place): Where it was called; in the backward pass, where the
            operation was called that it is the derivative of.
        inputs (tuple[Range]): Its inputs, as they were before it.
        output (Range): Its output.
        rows (tuple[int]): Indices in the first dimension of the output that
            are not finite, if that has the size of the batch; () otherwise.
        node (str): The autograd node, as 'SqrtBackward0'. Defaults to ''.
        is_intended (bool): Whether somebody wrote the infinity down, as in
            ``masked_fill(mask, -inf)``. Defaults to False.
        scalars (tuple[float]): Numbers among its arguments. Defaults to ().
        parents (tuple): Where its bad inputs come from. Defaults to ().
    """

    order: int
    kind: str
    phase: str
    op: str
    place: Place
    inputs: tuple[Range, ...]
    output: Range
    rows: tuple[int, ...] = ()
    node: str = ''
    is_intended: bool = False
    scalars: tuple[float, ...] = ()
    parents: tuple[Origin, ...] = ()

    @property
    def name(self) -> str:
        """The operation alone, as 'div'."""
        return self.op.split('.')[1].rstrip('_')

    def __str__(self) -> str:
        where = f' ({self.node})' if self.node else ''
        lines = ' <- '.join(map(str, self.place.lines)) or '?'
        return (
            f'{self.kind} born in {self.phase}{where}: {self.op} in '
            f"'{self.place.module or ''}' at {lines} | "
            f'{"; ".join(map(str, self.inputs))} -> {self.output}'
        )


@dataclass(frozen=True, eq=False)
class External:
    """A tensor that was bad before any operation.

    Args:
        order (int): When it was first used, among all births.
        source (str): 'parameter', 'buffer', 'batch' or 'outside'.
        name (str): Its name in the model, its path in the batch, or ''.
        values (Range): What it looks like.
        place (Place): Where it was first used.
        rows (tuple[int]): As for :class:`Birth`. Defaults to ().
    """

    order: int
    source: str
    name: str
    values: Range
    place: Place
    rows: tuple[int, ...] = ()

    @property
    def kind(self) -> str:
        """'NaN' or 'Inf'."""
        return self.values.kind

    @property
    def is_intended(self) -> bool:
        """Whether it is a mask."""
        return self.values.looks_like_mask

    @property
    def parents(self) -> tuple[Origin, ...]:
        """Nothing: it comes from outside."""
        return ()

    def __str__(self) -> str:
        return f'{self.kind} in {self.source} {self.name!r}: {self.values}'


Origin = Union[Birth, External]
