#!/usr/bin/env bash
# Every experiment of the paper at the paper's size, on a machine with 16 cores and a GPU:
# bash benchmarks/verdicts.sh SECONDS, and bash benchmarks/verdicts.sh SECONDS ship for ship steering.
# Finished parts are kept, so that a second call continues; several processes of one experiment share
# its parts.
set -u
limit=${1:-500}
out=results/led
mkdir -p $out
export PYTHONPATH=src XLA_PYTHON_CLIENT_PREALLOCATE=false TF_CPP_MIN_LOG_LEVEL=3 PYTHONUNBUFFERED=1
start() {  # device, experiment, number of processes
    case $2 in
        calibration | lengths | partial-observation) program=benchmarks/experiments.py ;;
        *) program="-m bayespg reproduce" ;;
    esac
    for i in $(seq "$3"); do
        JAX_PLATFORMS=$1 timeout "$limit" python $program "$2" --paper --resume \
            --out $out > "$out/$2-$i.log" 2>&1 &
    done
}
if [ "${2:-}" = ship ]; then
    start cuda ship-steering-rates 3
    start cuda ship-steering 3
    start cuda ship-steering-printed 2
    wait
    exit
fi
start cuda random-walk-learning 2
start cuda mountain-car 2
start cuda random-walk-gradient 3
start cuda partial-observation 2
start cpu lqr-noise 3
start cpu lqr-gradient 2
start cpu lengths 2
start cuda lqr-variance 1
start cuda lqr-fisher 1
start cuda lqr-optimisation 1
start cuda lqr-rates 1
start cuda random-walk-rates 1
start cuda random-walk-printed 2
start cuda random-walk-lengths 1
start cuda mountain-car-long 2
start cpu lqr-readings 4
start cpu lqr-fisher-readings 3
start cpu lqr-fisher-form 2
start cpu lqr-gradient-readings 1
start cpu bandit 1
start cuda calibration 1
wait
