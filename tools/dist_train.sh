#!/usr/bin/env bash
# Train on several devices of this machine, or of several machines:
#   tools/dist_train.sh CONFIG NPROC [arguments of train.py]
# NNODES, NODE_RANK, PORT and MASTER_ADDR are read from the environment. With
# --max-restarts K all processes are started again after a failure.
set -euo pipefail

if [ $# -lt 2 ]; then
    echo "usage: $0 CONFIG NPROC [arguments of train.py]" >&2
    exit 2
fi
config=$1
nproc=$2
shift 2

# The supervisor of this checkout, also if mmstable is not installed.
root=$(cd "$(dirname "$0")/.." && pwd)
PYTHONPATH="$root${PYTHONPATH:+:$PYTHONPATH}" \
    exec "${PYTHON:-python}" -m mmstable dist-train "$config" "$nproc" "$@"
