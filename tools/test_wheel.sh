#!/usr/bin/env bash
# Build the wheel, install it without constraints in fresh environments, and use it from an empty folder: with no extra,
# [server] and [flower] with $PYTHON, and commands without PyTorch with Python 3.12 and 3.13 if they are installed.
# PyTorch is installed first, in the version of constraints.txt or TORCH=...
set -euo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)
python=${PYTHON:-python3.11}
torch=${TORCH:-$(grep -o '^torch==[^ ]*' "$root/constraints.txt")}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
failed=0

fresh() { # INTERPRETER REQUIREMENT...: a new environment in $work/venv
  rm -rf "$work/venv" "$work/home" && mkdir "$work/home"
  "$1" -m venv "$work/venv"
  "$work/venv/bin/pip" install --quiet --disable-pip-version-check "${@:2}"
}

try() { # WORD...: run the command as a user would; a traceback also fails
  local status=0
  printf '$ submodel %s\n' "$*"
  (cd "$work/home" && env -i PATH="$work/venv/bin:$PATH" HOME="$work/home" LANG=C.UTF-8 \
    "$work/venv/bin/submodel" "$@") >"$work/output" 2>&1 || status=$?
  tail -n 3 "$work/output"
  if [ $status != 0 ] || grep -q Traceback "$work/output"; then
    cat "$work/output"
    echo "FAILED: exit $status"
    failed=1
  fi
}

fresh "$python" hatchling
(cd "$root" && "$work/venv/bin/python" -c "import hatchling.build as b; b.build_wheel('$work')" >/dev/null)
wheel=$(echo "$work"/submodel-*.whl)

for extra in "" "[server]" "[flower]"; do
  echo "== $("$python" --version), pip install submodel$extra"
  fresh "$python" "$torch"
  "$work/venv/bin/pip" install --quiet --disable-pip-version-check "$wheel$extra"
  "$work/venv/bin/pip" list --format=freeze --disable-pip-version-check | grep -iE '^(torch|typer|click|rich|pydantic|numpy|flwr)=='
  "$python" -c 'import random; print("size,colour,price"); \
[print(random.random(), random.choice(["red", "blue"]), 3 * random.random(), sep=",") for _ in range(600)]' >"$work/home/things.csv"
  try --help
  try train --set data.name=csv:things.csv --set data.target=price --set model.name=mlp --set train.rounds=3 --out runs/things
  try show runs/things
  try report runs/things
done

for version in 3.12 3.13; do
  other=
  for interpreter in "python$version" ~/.pyenv/versions/"$version".*/bin/python; do # a shim may have no interpreter
    if "$interpreter" --version >/dev/null 2>&1; then other=$interpreter; fi
  done
  if [ -z "$other" ]; then
    echo "== Python $version is not installed: skipped"
    continue
  fi
  echo "== $("$other" --version), pip install submodel, without PyTorch"
  "$other" -c 'import sys, tomllib; needs = tomllib.load(open(sys.argv[1], "rb"))["project"]["dependencies"]; \
print(*[need for need in needs if not need.startswith("torch")], sep="\n")' "$root/pyproject.toml" >"$work/needs"
  fresh "$other" -r "$work/needs"
  "$work/venv/bin/pip" install --quiet --disable-pip-version-check --no-deps "$wheel"
  "$work/venv/bin/python" -W error "$root/tools/import_all.py" || failed=1
  try --help
  try config
  try config --json --set scheme.name=rolling
  mkdir "$work/home/runs"
  try runs
done
[ $failed = 0 ] && echo "the wheel works"
exit $failed
