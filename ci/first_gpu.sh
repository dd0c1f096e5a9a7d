#!/usr/bin/env bash
# The first quarter of an hour on a GPU: measures what the defaults depend on, trains runs of the paper, and tests.
#
#     bash ci/first_gpu.sh [--minutes M] [--out DIRECTORY]
#
# In M minutes (default: 15): the measurement (paperbench/bench/first_gpu.py, under two minutes); then ResNet-110 with
# original and full pre-activation units in bf16, seed by seed, then all of Table 2, as many at once as end most runs in
# this time; beside these, for at most five minutes, the tests that need a GPU. The same command goes on with the runs,
# and repeats neither tests that passed nor what was measured on this GPU.
#
# The directory (default: build/first-gpu) holds summary.txt, log.txt, and all files in state.tar.00 and following, of
# at most 15 MB each: `cat state.tar.* | tar x` unpacks them. It can be moved to another machine.
#
# CIFAR-10 must be in $PAPERBENCH_DATA or ./data. PYTHON is used as it is if it has the dependencies, else .venv is
# created. PAPERBENCH_FIRST_DEVICE=cpu rehearses everything with small nets in 3 minutes.
set -uo pipefail
cd "$(dirname "$0")/.."

out=build/first-gpu minutes=15 device=${PAPERBENCH_FIRST_DEVICE:-cuda} profile=paper data=cifar10 failed=''
while [ $# -gt 0 ]; do
    case $1 in
    --out) out=$2 && shift ;;
    --minutes) minutes=$2 && shift ;;
    *) echo "Unknown option $1. Usage:$(sed -n '4s/^#  */ /p' "$0")" >&2 && exit 2 ;;
    esac
    shift
done
[[ $minutes =~ ^[1-9][0-9]*$ ]] || { echo "--minutes takes a whole number, not $minutes." >&2 && exit 2; }
export PYTHONPATH=$PWD${PYTHONPATH:+:$PYTHONPATH} PYTHONUNBUFFERED=1
[ "$device" != cpu ] || export OMP_NUM_THREADS=1 profile=smoke data=digits
needed='jinja2, PIL, pydantic, pylatexenc, yaml, safetensors, sklearn, scipy, tabulate, timm, torch, torchvision, wrapt'
if [ -z "${PYTHON:-}" ] || ! "$PYTHON" -c "import $needed"; then
    . ci/environment.sh test
    PYTHON=python
fi
"$PYTHON" -m paperbench data check "$data" || exit
mkdir -p "$out" && out=$(cd "$out" && pwd) work=$(mktemp -d) parts=$(mktemp -d)
exec > >(tee -ai "$out/log.txt") 2>&1
# A child that has just begun may still have these traps.
trap '[ $BASHPID != $$ ] || rm -rf "$work" "$parts"' EXIT
trap '[ $BASHPID != $$ ] || stop 2> /dev/null; exit 130' INT TERM

stop() {
    kill $(jobs -p)
    wait $(jobs -p) $$ # without an argument it would wait for tee
    finish
}

await() { # as `wait`, which may miss a signal that comes just as it begins
    while kill -0 "$1" 2> /dev/null; do sleep 0.1; done
    wait "$1"
}

left() { echo $((60 * minutes - SECONDS - $1)); }

train() { # runs in the order of their worth
    local runs status=0
    trap 'kill $!; wait $!; exit' TERM
    for runs in '--cells original/resnet110 preact/resnet110' ''; do
        (($(left 45) > 0)) || return "$status"
        # shellcheck disable=SC2086  # several words
        timeout --kill-after=10 "$(left 20)" "$PYTHON" -m paperbench run table2 $runs --profile "$profile" --yes \
            --precision bf16 --device "$device" --at-once "$at_once" --results "$work/results" \
            --max-seconds "$(left 35)" &
        await $!
        status=$?
        case $status in 75 | 124) return 0 ;; esac # the time was up
    done
    return "$status"
}

finish() { # packs all but leases and the older of two checkpoints, and sums up
    (
        rm -f "$parts"/* && cd "$work" || exit
        for run in results/runs/*; do ls -v "$run"/checkpoint-*.safetensors | head -n -1; done > "$parts/older" 2> /dev/null
        tar cf - --exclude='results/leases/*' --exclude-from="$parts/older" -- * | split -d -b 15M - "$parts/state.tar."
        [ "${PIPESTATUS[0]}" -le 1 ] # 1: a file has changed meanwhile
    ) && rm -f "$out"/state.tar.* && mv "$parts"/state.tar.* "$out"
    {
        "$PYTHON" -m paperbench.bench.first_gpu summary "$work/first.json" "$work/results"
        echo "GPU tests: $(grep -E '^(FAILED|ERROR) |(passed|failed|skipped|error).* in |^Not all' "$work/tests.txt" || echo not done)"
        echo "Failed: ${failed:-nothing}"
    } 2>&1 | tee "$out/summary.txt"
}

# Bash loses a trap that it has to run while it reads `$(`. So it reads all before, and none stands in another `$(`.
main() {
    [ ! -e "$out/state.tar.00" ] || cat "$out"/state.tar.* | tar xf - -C "$work" || exit
    timeout 90 "$PYTHON" -m paperbench doctor --device "$device" > "$work/doctor.txt" 2>&1 &
    doctor=$! seconds=$((minutes * 12 < 110 ? minutes * 12 : 110))
    timeout --kill-after=5 $((seconds + 30)) \
        "$PYTHON" -m paperbench.bench.first_gpu measure "$work/first.json" "$device" "$seconds" &
    await $! || failed+=' measurement'
    seconds=$(left 50)
    read -r at_once runs <<< "$("$PYTHON" -m paperbench.bench.first_gpu choose "$work/first.json" "$seconds")"
    at_once=${at_once:-1}
    echo "$(left 0) s left: training, $at_once at once, in which ${runs:-no} runs of ResNet-110 should end."
    train &
    training=$!
    await $doctor
    cat "$work/doctor.txt"
    seconds=$(left 30)
    ((seconds < 300)) || seconds=300
    if ((seconds > 0)) && ! tail -n 1 "$work/tests.txt" 2> /dev/null | grep -v 'failed\|error' | grep passed; then
        workers=$(nproc)
        ((workers < 6)) || workers=6
        set -m # or bash would let it ignore the interrupt, after which pytest sums up
        # shellcheck disable=SC2046  # several files; others may need packages that are missing here
        timeout --signal=INT --kill-after=9 "$seconds" nice -n 5 "$PYTHON" -m pytest -q -m gpu -p no:cacheprovider \
            -n "$workers" $(grep -rl --include='test_*.py' 'mark\.gpu' tests) > "$work/tests.txt" 2>&1 &
        set +m
        await $! || case $? in
            124 | 137) echo 'Not all: the next call repeats them.' >> "$work/tests.txt" ;; # the time was up
            *) failed+=' tests' ;;
        esac
    fi
    if (($(left 60) > 0)); then
        echo "$(left 0) s left. So far:" && finish # if this is killed, that much is kept
        # once more, without the tests, which may have taken the GPU's memory
        await $training || (($(left 60) < 0)) || { train & training=$!; }
    fi
    await $training || failed+=' training'
    finish
    [ -z "$failed" ]
}

main
