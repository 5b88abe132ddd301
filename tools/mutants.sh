#!/bin/sh
# Mutates the supervisor's core, runs its tests and the simulation, and prints the mutants that they miss. Needs
# cargo-mutants (`cargo install cargo-mutants --locked`). The order is random, so a run that is stopped early has tried
# a random sample. Arguments are passed on to cargo-mutants: `sh tools/mutants.sh --shard 0/8`.
#
# The core is built as a separate crate, which is possible because it depends only on opt-shared. A mutant then takes
# seconds instead of a minute.
set -eu
root=$(cd "$(dirname "$0")/.." && pwd)
work=${MUTANTS_DIR:-$(mktemp -d)}
# Paths in the copy are the same as in the repository.
for part in supervisor/src/core tools/src/simulate; do
    rm -rf "${work:?}/$part"
    mkdir -p "$work/$part"
    cp -r "$root/$part/." "$work/$part"
done
printf 'pub mod core;\n' > "$work/supervisor/src/lib.rs"
cat > "$work/Cargo.toml" <<TOML
[package]
name = "opt-supervisor"
version = "0.0.0"
edition = "2024"

[lib]
path = "supervisor/src/lib.rs"

[features]
default = ["testkit"]
testkit = []

[dependencies]
opt-shared = { path = "$root/shared" }

[dev-dependencies]
clap = { version = "4", features = ["derive"] }
proptest = { version = "1", default-features = false, features = ["std"] }
rand = { version = "0.9", default-features = false, features = ["std", "std_rng", "small_rng"] }

[[test]]
name = "simulate"
path = "tools/src/simulate/main.rs"

[profile.dev]
debug = false

[workspace]
TOML
cp "$root/Cargo.lock" "$work/Cargo.lock"
cd "$work"
exec cargo mutants --shuffle --exclude "**/testkit/**" --exclude "**/simulate/**" --timeout 20 --output "$work" "$@"
