# Sourced by the other scripts, as `. ci/environment.sh SET`: creates and activates their common virtual environment, and
# installs what SET needs: run (paperbench alone), test or docs.
# PYTHON chooses the interpreter (3.11.4 or later). To start over, delete .venv.

if [ "$(uname -sm)" = "Darwin x86_64" ]; then
    echo "PyTorch has no builds for Intel Macs since 2.2, and paperbench needs 2.11 or later. Use Linux." >&2
    exit 2
fi
cd "$(dirname "${BASH_SOURCE[0]}")/.."
environment=.venv
if [ ! -x "$environment/bin/python" ]; then
    echo "Creating the virtual environment $environment (to run or test, downloads torch, which takes a few minutes)"
    "${PYTHON:-python3}" -m venv "$environment"
fi
. "$environment/bin/activate"
case $1 in
run) needed=(--editable .) ;;
test) needed=(--editable . --group test --group lint --group docs) ;; # a test builds the site
docs) needed=(--group docs) ;;
*) echo "ci/environment.sh takes run, test or docs, not $1." >&2 && exit 2 ;;
esac
stamp="$environment/installed-$1"
wanted=$(cat pyproject.toml constraints.txt | cksum)
if [ "$(cat "$stamp" 2> /dev/null)" != "$wanted" ]; then
    python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --upgrade pip
    bash ci/install.sh --constraint constraints.txt "${needed[@]}" || exit
    echo "$wanted" > "$stamp"
fi
