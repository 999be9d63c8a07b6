#!/usr/bin/env bash
# Builds the first process of virtual machines, static, and puts it as guest-init into a folder: beside the program `loadline`, which
# looks for it there.
#
#   app/guest-init/build.sh TARGET FOLDER       TARGET: the folder of cargo's results
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

target=$1 folder=$2
triple=$(rustc -vV | sed -n 's/^host: //p')
# With --target, the flags are not those of build scripts, and nothing else is built anew.
RUSTFLAGS="${RUSTFLAGS:-} -C target-feature=+crt-static" cargo build --locked --quiet --target-dir "$target" \
    --profile first-process --target "$triple" -p loadline-guest-init
mkdir -p "$folder"
# A cargo build of the whole workspace puts a program of this package there too, which is not static: so cargo has another name for it.
built=$target/$triple/first-process/loadline-guest-init
cmp -s "$built" "$folder/guest-init" || install "$built" "$folder/guest-init"
