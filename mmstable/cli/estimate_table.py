"""What a config takes, as tables and sentences."""

from __future__ import annotations

from dataclasses import dataclass

from mmstable.memory.estimate import Data, Phase
from mmstable.memory.presets import PRESETS
from mmstable.memory.sizes import readable
from mmstable.messages import N_, _

_PHASES = {
    'training': N_('training'),
    'validation': N_('validation'),
}
_PARTS = {
    'weights': N_('weights and buffers'),
    'gradients': N_('gradients, once all are there'),
    'optimizer': N_('optimizer state'),
    'batch': N_('the batch'),
    'activations': N_('activations, temporaries'),
}


@dataclass(frozen=True)
class Figures:
    """All that was found out about a config.

    Args:
        limit (int, optional): Memory of the device, in bytes.
        accumulation (int): Batches that make one step.
        training (Phase): What training takes.
        validation (Phase, optional): What validation takes.
        presets (dict[str, Phase]): What training takes with presets.
        train_data (Data): Data of training.
        val_data (Data, optional): Data of validation.
    """

    limit: int | None
    accumulation: int
    training: Phase
    validation: Phase | None
    presets: dict[str, Phase]
    train_data: Data
    val_data: Data | None

    @property
    def exceeds_limit(self) -> bool:
        """Whether training or validation takes more than there is."""
        if self.limit is None:
            return False
        return any(one.peak.total > self.limit for one in self.phases())

    def phases(self) -> list[Phase]:
        """Training, and validation if there is one."""
        both = (self.training, self.validation)
        return [one for one in both if one is not None]

    def data(self) -> dict[str, Data]:
        """The data by split."""
        both = {'train': self.train_data, 'val': self.val_data}
        return {name: one for name, one in both.items() if one is not None}


def print_figures(figures: Figures) -> None:
    """Print all of it."""
    from rich.console import Console

    # Wide enough for the tables where there is no terminal.
    console = Console(soft_wrap=True)
    console.print(_parts(figures))
    for line in _remarks(figures):
        console.print(line, markup=False, highlight=False)
    console.print(_presets(figures))
    console.print(_best_preset(figures), markup=False, highlight=False)


def _parts(figures: Figures) -> object:
    from rich.table import Table

    table = Table(title=_('bytes of tensors at the peak'))
    table.add_column('')
    phases = figures.phases()
    for name in ('training', 'validation')[: len(phases)]:
        table.add_column(_(_PHASES[name]), justify='right')
    sizes = [str(phase.batch_size) for phase in phases]
    table.add_row(_('batch size'), *sizes)
    for part in ('weights', 'gradients', 'optimizer', 'batch', 'activations'):
        values = [readable(getattr(one.peak, part)) for one in phases]
        table.add_row(_(_PARTS[part]), *values)
    table.add_section()
    values = [readable(one.peak.total) for one in phases]
    table.add_row(_('peak'), *values, style='bold')
    each = [readable(one.line.each) for one in phases]
    table.add_row(_('per sample'), *each)
    if figures.limit is not None:
        most = [str(one.largest) for one in phases]
        table.add_row(_('largest batch that fits'), *most)
    return table


def _remarks(figures: Figures) -> list[str]:
    lines = [
        _(
            'These are bytes of tensors. What the device takes besides (its '
            'context, workspaces, unused parts of the cache) comes on top.'
        )
    ]
    if figures.accumulation > 1:
        samples = figures.training.batch_size * figures.accumulation
        lines.append(
            _(
                'A step sees {counts} batches, {samples} samples of each '
                'rank.',
                counts=figures.accumulation,
                samples=samples,
            )
        )
    for phase, name in zip(figures.phases(), ('training', 'validation')):
        if phase.why_real:
            which = _(_PHASES[name])
            lines.append(
                _(
                    '{phase}: measured on real batches of 4 and 8 and '
                    'extrapolated, because the model needs values: {reason}',
                    phase=which,
                    reason=phase.why_real,
                )
            )
    lines += _about_validation(figures)
    for name, data in figures.data().items():
        lines.append(_about_loading(f'{name}_dataloader', data))
    return lines


def _about_loading(loader: str, data: Data) -> str:
    size = readable(data.host_bytes)
    if data.workers == 0:
        return _(
            'Host RAM, {loader}: no workers, so nothing is read ahead: '
            '{size} in a batch.',
            loader=loader,
            size=size,
        )
    return _(
        'Host RAM, {loader}: {workers:worker|workers} x {prefetch} prefetch: '
        '{size} in batches read ahead.',
        loader=loader,
        workers=data.workers,
        prefetch=data.prefetch,
        size=size,
    )


def _about_validation(figures: Figures) -> list[str]:
    validation, training = figures.validation, figures.training
    if validation is None or validation.peak.total <= training.peak.total:
        return []
    return [
        _(
            'Validation takes more than training: {size} samples in a batch, '
            'against {training}. val_dataloader.batch_size={best} would take '
            'no more.',
            size=validation.batch_size,
            training=training.batch_size,
            best=max(1, validation.line.fitting(training.peak.total)),
        )
    ]


def _presets(figures: Figures) -> object:
    from rich.table import Table

    table = Table(title=_('the same training with a preset of _base_/memory'))
    table.add_column(_('preset'))
    table.add_column(_('batch x accumulation'), justify='right')
    table.add_column(_('peak'), justify='right')
    if figures.limit is not None:
        table.add_column(_('fits'))
        table.add_column(_('largest batch that fits'), justify='right')
    for preset in PRESETS:
        phase = figures.presets[preset.name]
        counts = max(figures.accumulation, preset.accumulation)
        cells = [
            preset.name,
            f'{phase.batch_size} x {counts}',
            readable(phase.peak.total),
        ]
        if figures.limit is not None:
            fits = phase.peak.total <= figures.limit
            cells.append(_('yes') if fits else _('no'))
            cells.append(str(phase.largest))
        table.add_row(*cells)
    return table


def _best_preset(figures: Figures) -> str:
    if figures.limit is None:
        return _('Say --device-memory 24GiB to learn which batch fits.')
    limit, validation = readable(figures.limit), figures.validation
    if not figures.exceeds_limit:
        return _('Training fits into {limit}.', limit=limit)
    if figures.training.peak.total <= figures.limit and validation:
        best = validation.largest
        return _(
            'Training fits into {limit}, but validation does not: '
            'val_dataloader.batch_size={best} would.',
            limit=limit,
            best=best,
        )
    for preset in PRESETS:
        if figures.presets[preset.name].peak.total <= figures.limit:
            return _(
                'Training does not fit into {limit}; with '
                "'mmstable::_base_/memory/{preset}.py' it does.",
                preset=preset.name,
                limit=limit,
            )
    return _(
        'Training does not fit into {limit}, with no preset either. The '
        'largest batch that fits without one: {largest}.',
        limit=limit,
        largest=figures.training.largest,
    )
