#!/usr/bin/env bash
# What `sure` says and how often it is right, where returns judge it, and steps that wait for it:
# benchmarks/uphill.py without intervals and benchmarks/steps.py, side by side on one GPU, the
# default agent first. Results into the folder $1; a run that is cut off leaves its .part files.
out=${1:-results}
mkdir -p "$out"
rm -f "$out"/judged-*.part "$out"/steps-*.part
export XLA_PYTHON_CLIENT_PREALLOCATE=false PYTHONPATH=src:$PYTHONPATH
start() { # the niceness, the name of the part, and its command
    nice -n "$1" python benchmarks/"${@:3}" --out "$out/$2.part" >"$out/$2.log" 2>&1 &
}
for task in CartPole Acrobot Pendulum; do
    start 0 "judged-fourier-$task" uphill.py --uphill-only --tasks $task --policies fourier \
        --paths 2 4 16 64 --estimators "BAC, lambda 0.9"
    start 2 "steps-$task" steps.py --tasks "$task-v1" --batches 2
    start 8 "judged-mlp-$task" uphill.py --uphill-only --tasks $task --policies mlp \
        --episodes 50000 --estimators "BAC, lambda 0.9" "BAC, lambda 1"
    start 12 "judged-linear-$task" uphill.py --uphill-only --tasks $task --policies linear \
        --estimators "Model 2"
done
wait
cat "$out"/steps-*.part >"$out/steps.jsonl"
cat "$out"/judged-*.part >"$out/uphill-judged.jsonl"
tail -qn 1 "$out"/judged-*.log "$out"/steps-*.log
