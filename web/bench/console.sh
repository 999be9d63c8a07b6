#!/usr/bin/env bash
# console.sh TARGET [OPTION...]: builds the large cluster, and measures the console of TARGET/release with it. `./dev bench console` calls this.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

cargo build --locked --release -p loadline-console --example large_cluster
exec node web/bench/console.mjs "$1/release/loadline" "$1/release/examples/large_cluster" "${@:2}"
