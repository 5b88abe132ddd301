#!/usr/bin/env bash
# Builds a wheel for x86-64 or aarch64, and starts the program in it. If this machine is of the other kind, this needs a
# cross compiler (`gcc-aarch64-linux-gnu` or `gcc-x86-64-linux-gnu`), Rust's target, and qemu (`qemu-user`).
#
#     tools/wheel.sh aarch64
set -euo pipefail
case "${1:-}" in
    x86_64 | aarch64) readonly ARCH="$1" ;;
    *)
        echo "usage: tools/wheel.sh x86_64|aarch64" >&2
        exit 2
        ;;
esac
cd "$(dirname "${BASH_SOURCE[0]}")/.."

readonly TARGET="$ARCH-unknown-linux-gnu" OUT=target/wheels MATURIN_VERSION=1.16.0
if [ "$(target/maturin/bin/maturin --version 2>/dev/null)" != "maturin $MATURIN_VERSION" ]; then
    python3 -m venv target/maturin
    target/maturin/bin/pip install --quiet "maturin==$MATURIN_VERSION"
fi

# How to start a program for $ARCH.
start=()
if [ "$(uname -m)" != "$ARCH" ]; then
    variable="${TARGET//-/_}"
    export "CARGO_TARGET_${variable^^}_LINKER=$ARCH-linux-gnu-gcc" "CC_$variable=$ARCH-linux-gnu-gcc"
    start=("qemu-$ARCH" -L "/usr/$ARCH-linux-gnu")
fi
PATH="$PWD/target/maturin/bin:$PATH" maturin build --release --target "$TARGET" --out "$OUT"

# The newest one, because wheels of other versions may be there.
wheel="$(ls -t "$OUT"/*"_$ARCH.whl" | head -1)"
unpacked="$(mktemp -d)"
trap 'rm -rf "$unpacked"' EXIT
python3 -m zipfile -e "$wheel" "$unpacked"
program="$(find "$unpacked" -path '*/scripts/opt-supervisor')"
chmod +x "$program"
"${start[@]}" "$program" --version
"${start[@]}" "$program" check configs/demo.toml > "$unpacked/check.txt"
echo "wheel: $wheel"
