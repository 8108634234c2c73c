#!/usr/bin/env bash
# Make a virtual environment that can train, test, lint and document mmstable:
#   requirements/install.sh PYTHON VENV
# A torch that PYTHON can import is used as it is.
set -euo pipefail

python=$1
venv=$2
cd "$(dirname "$0")/.."

has_torch() { "$1" -c 'import torch' 2>/dev/null; }

if [ ! -x "$venv/bin/python" ]; then
    if has_torch "$python"; then
        "$python" -m venv --system-site-packages "$venv"
        # If PYTHON is itself a virtual environment, that does not show its
        # packages: point to the folder of its torch.
        has_torch "$venv/bin/python" || "$python" -c '
import pathlib, torch
print(pathlib.Path(torch.__file__).parents[1])
' > "$("$venv/bin/python" -c '
import sysconfig
print(sysconfig.get_path("purelib"))
')/torch_of_python.pth"
    else
        "$python" -m venv "$venv"
    fi
fi
pip=("$venv/bin/python" -m pip --disable-pip-version-check)

# By itself and first, so that no other requirement chooses its version.
has_torch "$venv/bin/python" || "${pip[@]}" install -r requirements/torch.txt

# The tested versions belong to the tested torch and need Python 3.11; any
# other combination gets what pip finds.
constraints=()
if "$venv/bin/python" - <<'CHECK'
import sys
import torch
tested = open('requirements/torch.txt').read().strip().split('==')[1]
same = torch.__version__.split('+')[0] == tested
sys.exit(0 if same and sys.version_info >= (3, 11) else 1)
CHECK
then
    constraints=(-c requirements/tested.txt)
fi
"${pip[@]}" install ${constraints[@]+"${constraints[@]}"} \
    -r requirements/runtime.txt -r requirements/demo.txt \
    -r requirements/completion.txt -r requirements/probing.txt \
    -r requirements/tests.txt \
    -r requirements/lint.txt -r requirements/docs.txt
"${pip[@]}" install --no-deps --no-build-isolation -e .
