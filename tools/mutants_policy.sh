#!/bin/sh
# Mutates the policy of the worker's stages (verify, profile, replay), runs their tests with scripted sessions, and
# prints the mutants that they miss. Needs cargo-mutants and passes its arguments on to it, like `mutants.sh`.
#
# Policy is built as a separate crate without the backends, which is possible because it does not depend on processes. A
# mutant then takes only seconds.
set -eu
root=$(cd "$(dirname "$0")/.." && pwd)
work=${MUTANTS_DIR:-$(mktemp -d)}
rm -rf "${work:?}/worker" "${work:?}/tests"
mkdir -p "$work/worker/src" "$work/tests/data"
for part in judge residency session stage recorded.rs page_cache.rs memfd.rs heap.rs; do
    cp -r "$root/worker/src/$part" "$work/worker/src/$part"
done
cp -r "$root/tests/data/captures" "$work/tests/data/captures"
rm -rf "$work/worker/src/session/host" "$work/worker/src/session/cuda" "$work/worker/src/stage/build.rs"
sed -i -e "/^pub mod host;$/d" -e "/^pub(crate) mod cuda;$/d" "$work/worker/src/session/mod.rs"
sed -i '/^pub(crate) mod build;$/d' "$work/worker/src/stage/mod.rs"
# In the copy, put the captures for tests inside the crate.
sed -i 's#"../tests/data/captures"#"tests/data/captures"#' "$work/worker/src/session/scripted/tasks.rs"
cat > "$work/worker/src/lib.rs" <<'RUST'
#![expect(dead_code, reason = "its callers are not in this crate")]
mod heap;
pub mod judge;
mod memfd;
mod page_cache;
mod recorded;
pub mod residency;
pub mod session;
pub mod stage;
RUST
cat > "$work/Cargo.toml" <<TOML
[package]
name = "opt-worker"
version = "0.0.0"
edition = "2024"

[lib]
path = "worker/src/lib.rs"

[dependencies]
blake3 = "1"
half = "2"
libc = "0.2"
nix = { version = "0.31", features = ["process", "signal"] }
opt-shared = { path = "$root/shared" }
postcard = { version = "1", default-features = false, features = ["use-std"] }
rand = { version = "0.9", default-features = false, features = ["std", "std_rng", "small_rng"] }
rustix = { version = "1", features = ["event", "fs", "mm", "process", "thread", "time", "param"] }
serde = { version = "1", features = ["derive"] }
thiserror = "2"

[dev-dependencies]
proptest = { version = "1", default-features = false, features = ["std"] }
tempfile = "3"

[profile.dev]
debug = false
[profile.dev.package.opt-shared]
opt-level = 1

[workspace]
TOML
cp "$root/Cargo.lock" "$work/Cargo.lock"
cd "$work"
# Tests of the planner and the steps of a replay are left out, because they are property tests that take minutes.
# Mutants of `calls.rs` run the tests of profiles and of verification, because profiles reach lines that verification
# does not.
missed=0
cargo mutants --shuffle --in-place --timeout 300 --output "$work" \
    -f 'worker/src/stage/verify/*.rs' -f 'worker/src/stage/failure.rs' \
    -f 'worker/src/stage/replay/mod.rs' -f 'worker/src/stage/replay/calls.rs' \
    "$@" -- --lib -- stage:: --skip replay::steps --skip replay::planner --skip stage::profile || missed=$?
mkdir -p "$work/profile"
cargo mutants --shuffle --in-place --timeout 300 --output "$work/profile" \
    -f 'worker/src/stage/calls.rs' -f 'worker/src/stage/profile/**/*.rs' \
    "$@" -- --lib -- stage::profile stage::verify || missed=$?
exit "$missed"
