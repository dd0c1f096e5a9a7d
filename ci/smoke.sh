#!/usr/bin/env bash
# The main job from nothing: all ten cells of Table 2 at reduced depth on the embedded digits, in about three minutes.
set -euo pipefail
. "$(dirname "$0")/environment.sh"

results=build/smoke-results
rm -rf "$results"
paperbench run table2 --profile smoke --results "$results" "$@"
echo
echo "The records and histories are in $results; \`paperbench compare table2 --profile smoke --results $results\` prints"
echo "this again. The smoke profile proves that the machinery works. It says nothing about the paper."
