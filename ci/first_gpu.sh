#!/usr/bin/env bash
# The first hour on a GPU: checks that the CUDA path works, and measures what its defaults depend on.
#
#     bash ci/first_gpu.sh [--list] [--out DIRECTORY] [--minutes M] [STAGE...]
#
# A stage has at most nine minutes, so that a hang loses one stage. --minutes ends the call in time: give the same command
# again to go on. Stages that ended are not repeated; one that failed is repeated if it is named.
#
# The directory (default: build/first-gpu) holds summary.txt, log.txt, and all figures and runs in state.tar.00 and
# following, of at most 15 MB each: `cat state.tar.* | tar x` unpacks them. It can be moved to another machine.
#
# PYTHON is used as it is if it has the dependencies, else .venv is created. PAPERBENCH_FIRST_DEVICE=cpu rehearses every
# stage with small nets, in a few minutes.
set -uo pipefail
cd "$(dirname "$0")/.."

out=build/first-gpu list='' budget=1000000 wanted=''
while [ $# -gt 0 ]; do
    case $1 in
    --list) list=yes ;;
    --out) out=$2 && shift ;;
    --minutes) budget=$(($2 * 60)) && shift ;;
    -*) echo "Unknown option $1. Usage:$(sed -n '4s/^#  */ /p' "$0")" >&2 && exit 2 ;;
    *) wanted+=" $1 " ;;
    esac
    shift
done

device=${PAPERBENCH_FIRST_DEVICE:-cuda}
tf32=tf32 short=110 middle=164 deep=1001 quick='' rounds='' engines='eager graph compile' run=() small=()
scaling=(--engines graph --models preact_resnet110 preact_resnet152)
if [ "$device" = cpu ]; then
    tf32=fp32 short=20 middle=20 deep=20 small=(--batch-size 16 --seconds 0.05) run=(--profile smoke)
    quick=16 rounds=2 engines=eager scaling=(--models preact_resnet20 --seconds 0.05)
    export OMP_NUM_THREADS=1
fi
log=$out/log.txt limit=540 child='' names='' left='' failed=''

main() {
    stage doctor 1 "paperbench doctor: driver, wheel, card, memory, compiler, data" \
        "whether to go on: fix what it names first" \
        -m paperbench doctor --device "$device"
    stage tests 4 "the tests that need a GPU" \
        "any failure: no training before it is fixed" \
        -m pytest -q -m gpu -p no:cacheprovider --junitxml="$work/tests.xml"
    stage batch-norm 1 "batch norm on inputs of 1 to 1e12, by cuDNN and by torch, against float64" \
        "BatchNorm2dWithoutCudnn (training/batch_norm.py) goes if cuDNN's error is at most 4 times torch's on every
        input, and it is 10 % faster" \
        -m paperbench.bench.checks batch-norm "$device" "preact_resnet$short" "$work/batch-norm.json"
    for precision in "$tf32" bf16 fp32; do
        breakdown "$short" "$precision" 4
    done
    breakdown "$deep" bf16 8
    for net in $(echo "$short" "$middle" "$deep" | tr ' ' '\n' | uniq); do
        stage "bench-$net" 6 "images/s of ResNet-$net in $tf32 and bf16, beside the plain loop" \
            "COMPILE_MIN_ITERATIONS (training/engine.py): the iterations from which compiling pays off, if they are not
            1,000 to 10,000; no compile by default if it is not faster than graph" \
            -m paperbench bench --device "$device" --models "preact_resnet$net" --precisions "$tf32" bf16 \
            --rounds "${rounds:-5}" "${small[@]}" --minutes @minutes --json "$work/bench-$net.json"
    done
    stage repetitions 7 "the same training twice, and resumed in another process, with every engine" \
        "any difference: README's promise of bit-for-bit resumption is wrong on this GPU" \
        -m paperbench.bench.checks repetitions "$device" "preact_resnet$short" "$work/repetitions.json" $quick
    if [ -n "$list" ] || [ "$device" = cpu ] || (($(nvidia-smi -L 2> /dev/null | wc -l) > 1)); then
        stage scaling 6 "two processes that train one run, if there are two GPUs: speed, and equality with one" \
            "different parameters: no run by several processes; whether to overlap the sum of gradients with the backward
            pass (training/processes.py): if it takes more than 15 % of a step" \
            -m torch.distributed.run --standalone --nproc-per-node 2 -m paperbench bench --scaling --device "$device" \
            "${scaling[@]}" --rounds "${rounds:-5}" --minutes @minutes --json "$work/scaling.json"
    fi
    for engine in $engines; do
        stage "table5-$engine" 4 "a small Table 5 with engine $engine" \
            "any failure: no training on photographs with this engine before it is fixed" \
            -m paperbench run table5 --profile smoke --device "$device" --engine "$engine" \
            --cells preact_resnet152 preact_resnet200_aspect --results "$parts/table5-$engine"
    done
    stage table5-cost 2 "how long Table 5 takes" \
        "the hours of Table 5, in README" \
        -m paperbench plan table5 --device "$device"
    stage runs 5 "paper runs: original and full pre-activation ResNet-110, as far as they come" \
        "the hours of a table, in README; whether errors along the way are plausible" \
        -m paperbench run table2 --cells original/resnet110 preact/resnet110 --seeds 1 --device "$device" \
        "${run[@]}" --results "$work/results" --max-seconds @seconds
}

breakdown() { # NET PRECISION MINUTES
    stage "breakdown-$1-$2" "$3" "where a step of ResNet-$1 in $2 spends its time, in every setting" \
        "memory_layout (training/precision.py) if the other layout is 3 % faster; combo_kernels (training/compiling.py)
        if 2 % faster; cuDNN's algorithms (set_arithmetic) are looked into if others are 25 % faster" \
        -m paperbench bench --device "$device" --breakdown "preact_resnet$1" --precisions "$2" "${small[@]}" \
        --json "$work/breakdown-$1-$2.json"
}

stage() { # NAME MINUTES WHAT DECIDES ARGUMENT-OF-PYTHON...
    local name=$1 minutes=$2 what=$3 decides=$4 status=0 seconds=$limit
    shift 4
    names+=" $name "
    if [ -n "$list" ]; then
        printf '%-20s about %s min: %s\n    -> %s\n' "$name" "$minutes" "$what" "$(echo $decides)"
        return
    fi
    if [ -n "$wanted" ] && [[ $wanted != *" $name "* ]]; then return; fi
    if [ -e "$work/$name.exit" ] && { [ "$(cat "$work/$name.exit")" = 0 ] || [ -z "$wanted" ]; }; then return; fi
    if ((budget - SECONDS < 60 * minutes)); then
        left+=" $name"
        return
    fi
    ((budget - SECONDS >= limit)) || seconds=$((budget - SECONDS))
    set -- "${@//@seconds/$((seconds - 60))}"
    set -- "${@//@minutes/$((seconds / 60 - 1))}"
    echo "== $name: $what" | tee -a "$log"
    timeout --kill-after=30 "$seconds" "$PYTHON" "$@" > >(tee -a "$log") 2>&1 &
    child=$!
    wait "$child" || status=$?
    if [ "$status" = 124 ] && ((seconds < limit)); then
        left+=" $name" # the call's time was up, not the stage's
    elif [ "$name" = runs ] && [ "$status" = 0 ] && (($(find "$work" -name model.safetensors | wc -l) < 2)); then
        left+=" runs"
    else
        echo "$status" > "$work/$name.exit"
        [ "$status" = 0 ] || failed+=" $name"
    fi
    pack
}

pack() { # without leases, and without the older of two checkpoints
    (
        cd "$work" || exit
        for directory in results/runs/*/; do
            ls -v "$directory"checkpoint-*.safetensors 2> /dev/null | head -n -1
        done > "$parts/older"
        tar cf - --exclude='results/leases/*' --exclude-from="$parts/older" -- * | split -d -b 15M - "$parts/state.tar."
    ) && rm -f "$out"/state.tar.* && mv "$parts"/state.tar.* "$out"
}

work=. parts=.
if [ -n "$list" ]; then
    main
    exit
fi
list=yes && main > /dev/null && list=''
for name in $wanted; do
    [[ $names == *" $name "* ]] || { echo "There is no stage $name; --list shows all." >&2 && exit 2; }
done

needed='numpy, PIL, pydantic, pylatexenc, yaml, safetensors, sklearn, scipy, tabulate, timm, torch, torchvision, tqdm, wrapt'
if [ -z "${PYTHON:-}" ] || ! "$PYTHON" -c "import $needed"; then
    . ci/environment.sh
    PYTHON=python
fi
mkdir -p "$out" && out=$(cd "$out" && pwd) log=$out/log.txt
export PYTHONPATH=$PWD${PYTHONPATH:+:$PYTHONPATH} PYTHONUNBUFFERED=1
work=$(mktemp -d) parts=$(mktemp -d)
trap 'rm -rf "$work" "$parts"' EXIT
trap 'kill "$child"; wait "$child"; pack; exit 130' INT TERM
if [ -e "$out/state.tar.00" ]; then
    cat "$out"/state.tar.* | tar xf - -C "$work" || exit
fi
main
"$PYTHON" -m paperbench.bench.decisions "$work" > "$out/summary.txt" 2>> "$log"
cat "$out/summary.txt"
[ -z "$failed" ] || echo "Failed:$failed (see $log)"
[ -z "$left" ] || echo "Left for the next call:$left"
[ -z "$failed" ]
