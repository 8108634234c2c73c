#!/usr/bin/env bash
# Train on several devices of this machine, or of several machines:
#   tools/dist_train.sh CONFIG NPROC [arguments of train.py]
# NNODES, NODE_RANK, PORT and MASTER_ADDR are read from the environment.
set -euo pipefail

if [ $# -lt 2 ]; then
    echo "usage: $0 CONFIG NPROC [arguments of train.py]" >&2
    exit 2
fi
config=$1
nproc=$2
shift 2

# `python -m`, so that the torch of this Python starts its processes.
exec "${PYTHON:-python}" -m torch.distributed.run \
    --nnodes="${NNODES:-1}" \
    --node_rank="${NODE_RANK:-0}" \
    --master_addr="${MASTER_ADDR:-127.0.0.1}" \
    --master_port="${PORT:-29500}" \
    --nproc_per_node="$nproc" \
    "$(dirname "$0")/train.py" "$config" --launcher pytorch "$@"
