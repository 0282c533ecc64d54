#!/usr/bin/env bash
# Does episodes="auto" pay? Two, four episodes per update and "auto" at the same number of
# environment steps with the policy fourier, six seeds each. One file per task into the folder $1,
# with $2 runs at a time.
out=${1:-results}
mkdir -p "$out"
for task in CartPole-v1:6000 Acrobot-v1:12000 Pendulum-v1:40000; do
    name=${task%%:*}
    python -m bayespg sweep "$name" --set policy=fourier --set episodes=2,4,auto \
        --steps "${task##*:}" --seeds 6 --jobs "${2:-2}" --out "$out/auto-$name" \
        >"$out/auto-$name.log" 2>&1
    cp "$out/auto-$name/sweep.json" "$out/auto-$name.json"
    tail -n 12 "$out/auto-$name.log"
done
