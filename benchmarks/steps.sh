#!/usr/bin/env bash
# Steps that wait until `sure` says so: benchmarks/steps.py for the three tasks, side by side on one
# GPU. Results into the folder $1; a run that is cut off leaves its .part files.
out=${1:-results}
mkdir -p "$out"
rm -f "$out"/steps-*.part
export XLA_PYTHON_CLIENT_PREALLOCATE=false PYTHONPATH=src:$PYTHONPATH
for task in CartPole Acrobot Pendulum; do
    python benchmarks/steps.py --tasks "$task-v1" --batches 2 --out "$out/steps-$task.part" \
        >"$out/steps-$task.log" 2>&1 &
done
wait
cat "$out"/steps-*.part >"$out/steps.jsonl"
tail -qn 1 "$out"/steps-*.log
