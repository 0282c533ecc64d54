#!/usr/bin/env bash
# benchmarks/uphill.py for each task and policy (networks: and number of episodes), side by side on
# one GPU with many cores: most of the time goes into compiling. Results into the folder $1; a run
# that is cut off leaves its .part files.
out=${1:-results}
mkdir -p "$out"
rm -f "$out"/uphill-*.part
export XLA_PYTHON_CLIENT_PREALLOCATE=false PYTHONPATH=src:$PYTHONPATH
start() { # the name of the part, and its options
    python benchmarks/uphill.py "${@:2}" --out "$out/uphill-$1.part" >"$out/uphill-$1.log" 2>&1 &
}
for task in CartPole Acrobot Pendulum; do
    for paths in 4 16 64; do
        start "mlp-$task-$paths" --tasks $task --policies mlp --paths $paths
    done
    for policy in fourier linear; do
        start "$policy-$task" --tasks $task --policies $policy
    done
done
wait
cat "$out"/uphill-*.part >"$out/uphill-tasks.jsonl"
tail -qn 1 "$out"/uphill-*.log
