#!/usr/bin/env bash
# Files of one crate must not import each other in a circle; a module and the modules below it may. Prints each circle, as
# a.rs -> b.rs -> a.rs. Test code is exempt: it may use everything. `./dev lint` calls this.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

broken=0
while read -r crate; do
    circles=$(find "$crate/src" -name '*.rs' | LC_ALL=C sort | xargs awk -v src="$crate/src/" -f lint/import-circles.awk)
    if [[ -n $circles ]]; then
        printf '%s\n' "$circles"
        echo "  broken: no import circles in $crate: move what both files need into a third one"
        broken=1
    fi
done < <(find . -name Cargo.toml -not -path '*/target/*' -not -path '*/node_modules/*' -printf '%P\n' |
    sed -n 's,/Cargo.toml$,,p' | while read -r crate; do [[ ! -d $crate/src ]] || echo "$crate"; done | LC_ALL=C sort)
exit "$broken"
