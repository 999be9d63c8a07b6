#!/usr/bin/env bash
# The rules of ARCHITECTURE.md that a manifest shows. `./dev lint` calls this.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

# crates_of FOLDER...: the names of its crates, as one pattern.
crates_of() {
    find "$@" -mindepth 2 -maxdepth 2 -name Cargo.toml -exec grep -hm1 '^name = ' {} + 2>/dev/null |
        cut -d'"' -f2 | paste -sd'|' || true
}
# forbid RULE NAMES MANIFEST...: none of these manifests may name one of these crates.
forbid() {
    [[ -n $2 ]] && (($# > 2)) || return 0
    if grep -nHE "^([^#]*[^#[:alnum:]_-])?($2)([^[:alnum:]_-]|\$)" "${@:3}"; then
        echo "  broken: $1"
        broken=1
    fi
}

broken=0
shopt -s nullglob
forbid "bench knows nothing of san" "$(crates_of san)" bench/*/Cargo.toml
forbid "san knows nothing of bench" "$(crates_of bench)" san/*/Cargo.toml
forbid "base stands on neither wing" "$(crates_of san bench)" base/Cargo.toml
forbid "profile and measure do no I/O" "nix|tokio|io-uring|libc" bench/{profile,measure}/Cargo.toml
shopt -u nullglob
if grep -rnI --exclude-dir={.git,target,node_modules} '[.][.]/shared' .; then
    echo "  broken: the repository names nothing outside of itself"
    broken=1
fi
# One idea a file.
while read -r lines file; do
    echo "  broken: a file has at most 600 lines, and $file has $lines"
    broken=1
done < <(git ls-files -z -- '*.rs' '*.sh' '*.ts' '*.svelte' dev | xargs -0 wc -l | awk '$1 > 600 && $2 != "total"')
exit "$broken"
