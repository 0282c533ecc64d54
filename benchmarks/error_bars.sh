#!/usr/bin/env bash
# benchmarks/uphill.py for each task and policy (networks: and number of episodes) and
# benchmarks/steps.py for each task, side by side on one GPU with many cores: most of the time goes
# into compiling. Results into the folder $1; a run that is cut off leaves its .part files.
out=${1:-results}
mkdir -p "$out"
rm -f "$out"/*.part
export XLA_PYTHON_CLIENT_PREALLOCATE=false PYTHONPATH=src:$PYTHONPATH
start() { # the name of the part, and its command
    python benchmarks/"${@:2}" --out "$out/$1.part" >"$out/$1.log" 2>&1 &
}
for task in CartPole Acrobot Pendulum; do
    start "steps-$task" steps.py --tasks "$task-v1"
    for paths in 4 16 64; do
        start "uphill-mlp-$task-$paths" uphill.py --tasks $task --policies mlp --paths $paths
    done
    for policy in fourier linear; do
        start "uphill-$policy-$task" uphill.py --tasks $task --policies $policy
    done
done
wait
cat "$out"/steps-*.part >"$out/steps.jsonl"
cat "$out"/uphill-*.part >"$out/uphill-tasks.jsonl"
tail -qn 1 "$out"/*.log
