#!/usr/bin/env bash
# Resolves pyproject.toml into core.txt (what a user gets) and dev.txt (what the tests and the tools need besides), by
# installing into an empty environment: what is written here has been installed once.
#
#   make lock                                                  the newest versions that pyproject.toml allows
#   PYTHON=python3.11 TORCH=torch==2.13.0 requirements/lock.sh
#
# Run it on the oldest Python we support: what installs there installs on newer ones, and one lock serves all.
set -euo pipefail
cd "$(dirname "$0")/.."
python=${PYTHON:-python3.11}
constraints=()
torch=${TORCH:-$(grep '^torch==' requirements/core.txt 2>/dev/null || echo torch)}

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
pip() {  # in the environment of that name
    "$work/$1/bin/python" -m pip --disable-pip-version-check "${@:2}"
}

dependencies() {  # of one section of pyproject.toml, one a line
    "$python" - "$1" <<'PYTHON'
import sys, tomllib
with open("pyproject.toml", "rb") as file:
    project = tomllib.load(file)["project"]
extras = project["optional-dependencies"]
def expanded(names):  # "rlhf[web,postgres]" stands for those extras' own lists
    for name in names:
        own = name.startswith(project["name"] + "[")
        yield from (part for extra in name[len(project["name"]) + 1 : -1].split(",") for part in expanded(extras[extra])) if own else [name]
print("\n".join(project["dependencies"] if sys.argv[1] == "core" else expanded(extras[sys.argv[1]])))
PYTHON
}

# torch's build (+cpu, +cu130) and the CUDA packages that belong to it are the machine's business, not the lock's.
freeze() {
    pip "$1" freeze --all --exclude pip --exclude wheel |
        grep -vE '^(nvidia-|cuda-|triton==)' | sed -E 's/^(torch==[^+]+)\+.*/\1/' | LC_ALL=C sort -f
}

# The tools come first: where they allow only an older version of what the core needs, that is the one to lock.
for set in dev core; do
    dependencies "$set" >"$work/$set.in"
    "$python" -m venv "$work/$set"
    pip "$set" install "$torch" ${TORCH_INDEX:+--extra-index-url "$TORCH_INDEX"}
    [[ $set == dev ]] || constraints=(-c "$work/dev.frozen")
    pip "$set" install -r "$work/$set.in" "${constraints[@]}"
    freeze "$set" >"$work/$set.frozen"
done

head="# Made by \`make lock\` from pyproject.toml; good for every Python we support. Change that file, not this one."
{ echo "$head"; cat "$work/core.frozen"; } >"$work/core.txt"
{ echo "$head"; echo "-r core.txt"; LC_ALL=C comm -13 <(LC_ALL=C sort "$work/core.frozen") <(LC_ALL=C sort "$work/dev.frozen") | LC_ALL=C sort -f; } >"$work/dev.txt"
if grep -nE '(://| @ )' "$work/core.txt" "$work/dev.txt"; then
    echo "A package was installed from an address instead of an index: it can't be locked." >&2
    exit 1
fi
mv "$work/core.txt" "$work/dev.txt" requirements/
