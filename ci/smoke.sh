#!/usr/bin/env bash
# Runs all ten cells of Table 2 at reduced depth on the embedded digits, in about three minutes, and makes a page of them.
set -euo pipefail
. "$(dirname "$0")/environment.sh" run

results=build/smoke-results page=build/smoke-page
rm -rf "$results"
paperbench run table2 --profile smoke --results "$results" "$@"
echo
paperbench report table2 --results "$results" --out "$page"
echo "Records and histories are in $results. The smoke profile shows that paperbench works; its errors are not comparable"
echo "with the paper's."
