"""Texts that several commands share."""

from __future__ import annotations

from mmstable.messages import N_

NO_FOLDER = N_("there is no folder '{folder}' to write to.")
OLD_CONFIG = N_(
    '--fix: {path} has keys of mmcv 1.x: translate it first, by `mmstable '
    'upgrade`.'
)
LAUNCHER_HELP = N_('what started the processes of a distributed run')
UNCHANGED = N_("'{path}' says that already: nothing is written.")
