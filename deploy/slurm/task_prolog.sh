#!/usr/bin/env bash
# TaskProlog: runs as the job's user before each of its tasks. slurmstepd adds the lines `export NAME=VALUE` to the
# environment of the task. The settings are in wattle_slurm.conf beside this file.

devices=/dev progress=/run/wattle/progress.sock checkpoints=.wattle/checkpoints
while IFS='=' read -r key value; do
  key=${key//[[:space:]]/}
  value=${value%%#*}
  value=${value#"${value%%[![:space:]]*}"}
  value=${value%"${value##*[![:space:]]}"}
  case $key in devices | progress | checkpoints) printf -v "$key" %s "$value" ;; esac
done 2>/dev/null <"${BASH_SOURCE[0]%/*}/wattle_slurm.conf"

echo "export CUDA_DEVICE_ORDER=PCI_BUS_ID"

# Jobs that Slurm places have no tag. The end of their id is not known here, and the profiler recognises them by
# their processes. Checkpoint folders are not named after the number, because Slurm reuses numbers.
gpus=${SLURM_JOB_GPUS:-}${SLURM_STEP_GPUS:-}${CUDA_VISIBLE_DEVICES:-}
if [ -n "${WATTLE_TAG:-}$gpus" ]; then
  job=slurm-$SLURM_JOB_ID${WATTLE_TAG:+-$WATTLE_TAG}
  echo "export WATTLE_JOB=$job"
  echo "export WATTLE_ATTEMPT=$((${SLURM_RESTART_COUNT:-0} + 1))"
  echo "export WATTLE_PROGRESS=$progress"
  [ -z "${WATTLE_TAG:-}" ] || echo "export WATTLE_CHECKPOINT_DIR=$HOME/$checkpoints/$job"
fi

# Slurm sets the variables of gres/gpu only. A job with the GRES `guest` has the GPUs that it can open: a denied
# device returns EPERM; a permitted one opens, or returns ENXIO where no driver is behind it. A step inherits the
# variables of the batch script, but Slurm 26.05 clears CUDA_VISIBLE_DEVICES: WATTLE_GUEST marks such a job.
if [ -n "${WATTLE_GUEST:-}" ]; then gpus=${SLURM_STEP_GPUS:-}${CUDA_VISIBLE_DEVICES:-}; fi
if [ -n "${WATTLE_TAG:-}" ] && [ -z "$gpus" ]; then
  indices=() ranks=()
  for ((index = 0; index < 64; index++)); do
    [ -e "$devices/nvidia$index" ] || continue
    error=$( (exec <"$devices/nvidia$index") 2>&1) || [[ $error == *"No such device or address"* ]] || continue
    ranks+=("${#indices[@]}")
    indices+=("$index")
  done
  if ((${#indices[@]} > 0)); then
    IFS=,
    echo "export WATTLE_GUEST=1"
    echo "export SLURM_JOB_GPUS=${indices[*]}"
    echo "export SLURM_GPUS_ON_NODE=${#indices[@]}"
    # Relative to the devices that the job can open.
    echo "export CUDA_VISIBLE_DEVICES=${ranks[*]}"
    # A step of the job has no gres/gpu to which this could apply.
    echo "unset SLURM_CPUS_PER_GPU"
  fi
fi
exit 0
