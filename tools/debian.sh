#!/usr/bin/env bash
# Installs a wheel in a new, bare Debian system, runs the tutorial's commands there, and prints how long the steps took.
# Needs root, debootstrap, and access to Debian's and Python's package servers. The system is created in target/debian,
# and the next start of this script replaces it.
#
#     maturin build --release --out target/wheels
#     tools/debian.sh target/wheels/opt_supervisor-0.1.0-py3-none-manylinux_2_35_x86_64.whl
set -euo pipefail
if [ $# != 1 ]; then
    echo "usage: tools/debian.sh WHEEL" >&2
    exit 2
fi
WHEEL="$(realpath "$1")"
cd "$(dirname "${BASH_SOURCE[0]}")/.."

readonly WHEEL ROOT="$PWD/target/debian"
# The packages that kernels in C, C++ or Python need in addition to the wheel.
readonly PACKAGES=gcc,g++,libc6-dev,python3-venv,libpython3-stdlib,libpython3.11,ca-certificates

unmount() {
    for folder in proc dev; do
        if mountpoint --quiet "$ROOT/$folder"; then umount "$ROOT/$folder"; fi
    done
}
trap unmount EXIT
unmount
rm -rf --one-file-system "$ROOT"
mkdir -p "$ROOT"

echo "debian: a bare system"
debootstrap --variant=minbase --include="$PACKAGES" bookworm "$ROOT" > "$ROOT.log" 2>&1
mount -t proc proc "$ROOT/proc"
mount --bind /dev "$ROOT/dev"
# Copy the settings that this machine uses to reach package servers.
for file in /etc/resolv.conf /etc/hosts /etc/pip.conf; do
    if [ -e "$file" ]; then install -D --mode=644 "$(realpath "$file")" "$ROOT$file"; fi
done
if [ -e "$HOME/.config/pip/pip.conf" ]; then install -D --mode=644 "$HOME/.config/pip/pip.conf" "$ROOT/srv/.config/pip/pip.conf"; fi
install --mode=644 /etc/ssl/certs/ca-certificates.crt "$ROOT/etc/ssl/certs/"
if [ -d "${PIP_FIND_LINKS:-}" ]; then mkdir -p "$ROOT/$PIP_FIND_LINKS"; cp -r "$PIP_FIND_LINKS/." "$ROOT/$PIP_FIND_LINKS"; fi
cp "$WHEEL" "$ROOT/srv/"
python3 tools/tutorial_script.py docs/tutorial.md > "$ROOT/srv/tutorial.sh"

step() {
    local began="$SECONDS"
    chroot "$ROOT" /usr/bin/env PATH=/venv/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME=/srv sh -euc "$2"
    echo "debian: $1 took $((SECONDS - began)) s"
}
step "the virtual environment" "python3 -m venv /venv"
step "installing PyTorch" "pip install --quiet torch numpy"
step "installing the wheel" "pip install --quiet /srv/$(basename "$WHEEL")"
step "the tutorial" "mkdir /tutorial && cd /tutorial && sh /srv/tutorial.sh"
