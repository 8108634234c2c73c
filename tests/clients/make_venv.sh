#!/usr/bin/env bash
# An environment with OpenMMLab's packages, for the tests of this folder:
#   tests/clients/make_venv.sh PYTHON VENV
# PYTHON must have mmstable's requirements (torch, mmengine, ...); they are
# used as they are. Nothing that depends on torch is asked which torch.
set -euo pipefail

python=$1
venv=$2
"$python" -c 'import torch, mmengine' || {
    echo 'make_venv.sh: torch and mmengine are missing' >&2; exit 1; }
"$python" -m venv "$venv"
"$python" -c '
import pathlib, torch
print(pathlib.Path(torch.__file__).parents[1])
' > "$("$venv/bin/python" -c '
import sysconfig
print(sysconfig.get_path("purelib"))
')/torch_of_python.pth"
"$venv/bin/python" -m pip --disable-pip-version-check --quiet install \
    --no-deps mmcv-lite==2.1.0 mmsegmentation==1.2.2 mmpretrain==1.2.0 \
    mmdet==3.3.0 mmagic==1.2.0 torchvision==0.29.2 \
    click einops ftfy 'importlib-metadata<8.6' mat4py model-index \
    ordered-set prettytable pycocotools regex shapely six terminaltables \
    tqdm wcwidth zipp
touch "$venv/.ready"
