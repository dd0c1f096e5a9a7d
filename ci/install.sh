#!/usr/bin/env bash
# Calls `pip install` with its arguments, up to three times: downloads of gigabytes sometimes break off. pip keeps the
# packages that have arrived.
set -euo pipefail

for pause in 20 60 0; do
    python -m pip install --quiet "$@" && exit
    [ "$pause" = 0 ] || { echo "Installing failed. Trying again in $pause s." >&2 && sleep "$pause"; }
done
exit 1
