#!/usr/bin/env bash
# Train on a Slurm cluster:
#   tools/slurm_train.sh PARTITION JOB_NAME CONFIG [arguments of train.py]
# GPUS, GPUS_PER_NODE, CPUS_PER_TASK and SRUN_ARGS are read from the
# environment. DEVICE=cpu asks for no GPU: GPUS are then mere processes. The run
# saves and stops before the time limit of the job. Add --requeue to put a batch
# job back into the queue then; examples/schedulers/train.sbatch is one.
set -euo pipefail

if [ $# -lt 3 ]; then
    echo "usage: $0 PARTITION JOB_NAME CONFIG [arguments of train.py]" >&2
    exit 2
fi
partition=$1
job=$2
config=$3
shift 3

gpus=${GPUS:-8}
gpus_per_node=${GPUS_PER_NODE:-8}
# A job smaller than a node must not ask for the whole node.
if [ "$gpus" -lt "$gpus_per_node" ]; then
    gpus_per_node=$gpus
fi
gres=(--gres="gpu:$gpus_per_node")
if [ "${DEVICE:-gpu}" = cpu ]; then
    gres=()
fi
# SRUN_ARGS holds several options: it is split on purpose.
read -r -a srun_args <<< "${SRUN_ARGS:-}"

exec srun --partition="$partition" \
    --job-name="$job" \
    ${gres[@]+"${gres[@]}"} \
    --ntasks="$gpus" \
    --ntasks-per-node="$gpus_per_node" \
    --cpus-per-task="${CPUS_PER_TASK:-5}" \
    --kill-on-bad-exit=1 \
    --signal="USR2@${WARN_SECONDS:-120}" \
    ${srun_args[@]+"${srun_args[@]}"} \
    "${PYTHON:-python}" -u "$(dirname "$0")/train.py" "$config" \
    --launcher slurm "$@"
