#!/usr/bin/env bash
# A training loop in bash: a program in any language reports through the pipe of `wattle_job relay`.
set -eu

total=${1:-400}
folder=${WATTLE_CHECKPOINT_DIR:-checkpoints}
mkdir -p "$folder"
step=0
if [ -e "$folder/step" ]; then step=$(<"$folder/step"); fi

requested=
trap 'requested=1' USR1 TERM
exec {wattle}> >(exec python3 -m wattle_job relay --steps-total "$total")
relay=$!

echo "attempt ${WATTLE_ATTEMPT:-1} from step $step"
while [ "$step" -lt "$total" ]; do
  for _ in {1..2000}; do :; done  # one step
  step=$((step + 1))
  echo "$step" >&"$wattle"
  if [ -n "$requested" ]; then
    echo "$step" >"$folder/step.part"
    mv "$folder/step.part" "$folder/step"
    break
  fi
done
exec {wattle}>&-
wait "$relay"
if [ -z "$requested" ]; then echo completed; fi
