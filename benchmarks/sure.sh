#!/usr/bin/env bash
# What `sure` says and how often it is right, for the default agent, and steps that wait for it:
# benchmarks/uphill.py without intervals and benchmarks/steps.py, side by side on one GPU. Results
# into the folder $1; a run that is cut off leaves its .part files.
out=${1:-results}
mkdir -p "$out"
rm -f "$out"/judged-*.part "$out"/steps-*.part
export XLA_PYTHON_CLIENT_PREALLOCATE=false PYTHONPATH=src:$PYTHONPATH
start() { # the name of the part, and its command
    python benchmarks/"${@:2}" --out "$out/$1.part" >"$out/$1.log" 2>&1 &
}
sure() { # the name of the part, and its options
    start "judged-$1" uphill.py --uphill-only --estimators "BAC, lambda 0.9" "${@:2}"
}
for task in CartPole Acrobot Pendulum; do
    start "steps-$task" steps.py --tasks "$task-v1" --batches 2
    sure "fourier-$task" --tasks $task --policies fourier --paths 2 4 16 64
    sure "mlp-$task" --tasks $task --policies mlp --paths 4 16 64 --episodes 50000
done
wait
cat "$out"/steps-*.part >"$out/steps.jsonl"
cat "$out"/judged-*.part >"$out/uphill-judged.jsonl"
tail -qn 1 "$out"/judged-*.log "$out"/steps-*.log
