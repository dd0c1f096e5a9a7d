#!/usr/bin/env bash
# Builds the documentation site into build/site. `bash ci/docs.sh serve` serves it on http://127.0.0.1:8000 instead and
# rebuilds it when a page changes.
set -euo pipefail
. "$(dirname "$0")/environment.sh" docs

export NO_MKDOCS_2_WARNING=1 # a notice of the theme that a strict build would print
case "${1:-build}" in
build)
    mkdocs build --strict --clean --quiet
    echo "The site is in build/site. Searching it needs a server: bash ci/docs.sh serve"
    ;;
serve)
    shift
    mkdocs serve --strict "$@"
    ;;
*)
    echo "usage: bash ci/docs.sh [build | serve [OPTION OF MKDOCS SERVE]...]" >&2
    exit 2
    ;;
esac
