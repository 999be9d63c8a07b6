#!/usr/bin/env bash
# The units that the package has: systemd understands every line, and they are as hardened as is promised. `./dev lint` calls this.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

# Tenths of the exposure that `systemd-analyze security` computes, at most.
most=30
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
for unit in packaging/*.service; do
    # The program may not be installed here.
    sed 's#^ExecStart=/usr/bin/loadline #ExecStart=/bin/true #' "$unit" >"$work/${unit##*/}"
    # What it does not understand it ignores with a warning.
    said=$(systemd-analyze verify --man=no "$work/${unit##*/}" 2>&1) || said+=" (it failed)"
    if [[ -n $said ]]; then
        echo "$said"
        echo "  broken: systemd does not understand $unit"
        exit 1
    fi
    if ! said=$(systemd-analyze security --no-pager --offline=true --threshold="$most" "$work/${unit##*/}" 2>&1); then
        echo "$said"
        echo "  broken: the exposure of $unit is above $most tenths"
        exit 1
    fi
    grep -F 'Overall exposure' <<<"$said"
done
