#!/usr/bin/env bash
# benchmarks/uphill.py for each task and policy and benchmarks/steps.py for each task, side by side
# on one GPU with many cores: most of the time goes into compiling. Results into the folder $1.
out=${1:-results}
mkdir -p "$out"
export XLA_PYTHON_CLIENT_PREALLOCATE=false PYTHONPATH=src
for task in CartPole Acrobot Pendulum; do
    python benchmarks/steps.py --tasks "$task-v1" --out "$out/steps-$task.part" \
        >"$out/steps-$task.log" 2>&1 &
    for policy in linear fourier mlp; do
        python benchmarks/uphill.py --tasks $task --policies $policy \
            --out "$out/uphill-$task-$policy.part" >"$out/uphill-$task-$policy.log" 2>&1 &
    done
done
wait
cat "$out"/steps-*.part >"$out/steps.jsonl"
cat "$out"/uphill-*.part >"$out/uphill-tasks.jsonl"
tail -n 3 "$out"/*.log
