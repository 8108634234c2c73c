#!/usr/bin/env bash
# An environment with the trainers that survival.py compares with:
#   benchmarks/make_peers_venv.sh PYTHON VENV
# The torch of PYTHON is used as it is. mosaicml 0.32.1 asks for a torch before
# 2.7.1, so it comes without its requirements, which are listed here, and with
# the stub that lets torchvision be imported (tests/clients/stubs).
set -euo pipefail

python=$1
venv=$2
cd "$(dirname "$0")/.."
"$python" -m venv "$venv"
"$python" -c '
import pathlib, torch
print(pathlib.Path(torch.__file__).parents[1])
print(pathlib.Path("tests/clients/stubs").resolve())
' > "$("$venv/bin/python" -c '
import sysconfig
print(sysconfig.get_path("purelib"))
')/torch_of_python.pth"
pip=("$venv/bin/python" -m pip --disable-pip-version-check --quiet install)
torch=$("$python" -c 'import torch; print(torch.__version__.split("+")[0])')
"${pip[@]}" -c <(echo "torch==$torch") \
    $(grep -E '^(lightning|accelerate)' requirements/peers.txt)
"${pip[@]}" --no-deps $(grep '^mosaicml' requirements/peers.txt) \
    torchvision==0.29.2 torch-optimizer pytorch-ranger requests urllib3 \
    charset-normalizer certifi coolname tabulate py-cpuinfo \
    'importlib-metadata<8.6' zipp mosaicml-cli einops backoff gql \
    graphql-core tenacity prompt_toolkit questionary argcomplete \
    ruamel.yaml validators websockets wcwidth
