"""What a config takes, as tables and sentences."""

from __future__ import annotations

from dataclasses import dataclass

from mmstable.memory.estimate import Data, Phase
from mmstable.memory.presets import PRESETS
from mmstable.memory.sizes import readable
from mmstable.messages import say


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

    table = Table(title=say('estimate.title'))
    table.add_column('')
    phases = figures.phases()
    for name in ('training', 'validation')[: len(phases)]:
        table.add_column(say(f'estimate_phase.{name}'), justify='right')
    sizes = [str(phase.batch_size) for phase in phases]
    table.add_row(say('estimate_part.batch_size'), *sizes)
    for part in ('weights', 'gradients', 'optimizer', 'batch', 'activations'):
        values = [readable(getattr(one.peak, part)) for one in phases]
        table.add_row(say(f'estimate_part.{part}'), *values)
    table.add_section()
    values = [readable(one.peak.total) for one in phases]
    table.add_row(say('estimate_part.total'), *values, style='bold')
    each = [readable(one.line.each) for one in phases]
    table.add_row(say('estimate_part.each'), *each)
    if figures.limit is not None:
        most = [str(one.largest) for one in phases]
        table.add_row(say('estimate_part.largest'), *most)
    return table


def _remarks(figures: Figures) -> list[str]:
    lines = [say('estimate.promise')]
    if figures.accumulation > 1:
        samples = figures.training.batch_size * figures.accumulation
        lines.append(
            say(
                'estimate.accumulation',
                counts=figures.accumulation,
                samples=samples,
            )
        )
    for phase, name in zip(figures.phases(), ('training', 'validation')):
        if phase.why_real:
            which = say(f'estimate_phase.{name}')
            lines.append(
                say('estimate.real', phase=which, reason=phase.why_real)
            )
    lines += _about_validation(figures)
    for name, data in figures.data().items():
        lines.append(_about_loading(f'{name}_dataloader', data))
    return lines


def _about_loading(loader: str, data: Data) -> str:
    size = readable(data.host_bytes)
    if data.workers == 0:
        return say('estimate.host_alone', loader=loader, size=size)
    return say(
        'estimate.host',
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
        say(
            'estimate.larger_validation',
            size=validation.batch_size,
            training=training.batch_size,
            best=max(1, validation.line.fitting(training.peak.total)),
        )
    ]


def _presets(figures: Figures) -> object:
    from rich.table import Table

    table = Table(title=say('estimate.presets'))
    table.add_column(say('estimate_preset.name'))
    table.add_column(say('estimate_preset.batch'), justify='right')
    table.add_column(say('estimate_part.total'), justify='right')
    if figures.limit is not None:
        table.add_column(say('estimate_preset.fits'))
        table.add_column(say('estimate_part.largest'), justify='right')
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
            cells.append(
                say('estimate_preset.yes')
                if fits
                else say('estimate_preset.no')
            )
            cells.append(str(phase.largest))
        table.add_row(*cells)
    return table


def _best_preset(figures: Figures) -> str:
    if figures.limit is None:
        return say('estimate.no_limit')
    limit, validation = readable(figures.limit), figures.validation
    if not figures.exceeds_limit:
        return say('estimate.fits', limit=limit)
    if figures.training.peak.total <= figures.limit and validation:
        best = validation.largest
        return say('estimate.validation_too_large', limit=limit, best=best)
    for preset in PRESETS:
        if figures.presets[preset.name].peak.total <= figures.limit:
            return say('estimate.use', preset=preset.name, limit=limit)
    return say(
        'estimate.too_large', limit=limit, largest=figures.training.largest
    )
