#!/usr/bin/env bash
# Installs and uses the packages where nothing else is: `./dev package --check` calls this, as root.
#
#   packaging/check.sh TARGET         cargo's folder; the packages are in TARGET/packages
#
# The Debian package goes into a new minimal system of the release of this one, by apt; the static program into a folder
# that holds nothing but what its archive does. Both systems have processes, mounts and a network of their own.
# Programs for another shell are in single quotes.
# shellcheck disable=SC2016
set -euo pipefail

packages=$1/packages
work=$(mktemp -d)
trap 'rm -rf --one-file-system "$work"' EXIT
debian=$work/debian
bare=$work/bare

check() { printf 'check: %s\n' "$1"; }
fail() {
    printf 'check: FAILED: %s\n' "$*" >&2
    exit 1
}

# inside FOLDER PROGRAM [ARGUMENT...]: runs a program with FOLDER as its root. Everything that it starts ends with it.
inside() {
    unshare --mount --pid --net --fork --kill-child -- bash -c '
        ip link set lo up
        mkdir -p "$1/proc" "$1/dev"
        mount -t proc proc "$1/proc"
        mount --rbind /dev "$1/dev"
        exec env -i PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME=/ chroot "$@"' - "$@"
}

# expect CODES TEXT COMMAND...: the command ends with one of these exit codes and prints this text.
expect() {
    local codes=$1 text=$2 said code=0
    shift 2
    said=$("$@" 2>&1) || code=$?
    [[ " $codes " == *" $code "* ]] || fail "exit code $code: $*"$'\n'"$said"
    grep -qF -- "$text" <<<"$said" || fail "no '$text' in the output of $*"$'\n'"$said"
}

# has_files FOLDER: what administrators copy for other programs is in this folder of a package, as it is in the source.
has_files() {
    check "  the dashboard of Grafana, the alert rules of Prometheus, and the entry for multipath.conf"
    cmp packaging/grafana/loadline.json "$1/grafana/loadline.json" || fail "the package has no dashboard"
    cmp packaging/prometheus/loadline.rules.yml "$1/prometheus/loadline.rules.yml" || fail "the package has no alert rules"
    cmp packaging/iscsi/multipath.conf "$1/iscsi/multipath.conf" || fail "the package has no entry for multipath.conf"
}

# uses ROOT LOADLINE STUDIES: what both packages must be able to do.
uses() {
    local root=$1 loadline=$2 studies=$3 version study
    version=$(sed -n 's/^version *= *"\(.*\)"/\1/p' Cargo.toml | head -n 1)
    expect 0 "loadline $version" inside "$root" "$loadline" --version
    check "  a load on a new file"
    # 3: a finding makes a figure of one second doubtful, which is to be expected.
    expect "0 3" '"engine":' inside "$root" "$loadline" bench --create 64MiB /test.img --profile B4-T1-O8-W30-PR \
        --warm-up 0s --for 1s --json -
    [[ ! -e $root/test.img ]] || fail "the file of the load is left"
    check "  the plan of each study that needs no storage of a certain name or size"
    while read -r study; do
        expect 0 "total:" inside "$root" "$loadline" run "$studies/$study" --plan
    done < <(cd "$root$studies" && find . -name '*.toml' ! -name 'published*' ! -name device.toml ! -name hosts.toml ! -path './models/*' -printf '%P\n' | sort)
    check "  a study on the virtual SAN: its four nodes, two of them killed, and workers"
    expect "0 3" "page:" inside "$root" "$loadline" demo --out /run-of-check
    [[ -s $root/run-of-check/report/report.html ]] || fail "the demo left no page"
    rm -rf "$root/run-of-check"
}

debian_package() {
    local suite package symbols id page
    # shellcheck disable=SC1091
    suite=$(. /etc/os-release && echo "$VERSION_CODENAME")
    package=$(basename "$packages"/loadline_*.deb)
    symbols=$(basename "$packages"/loadline-dbgsym_*.deb)
    check "a minimal Debian system ($suite)"
    mmdebstrap --quiet --variant=minbase "$suite" "$debian"
    for page in cc gcc cargo rustc make; do
        [[ ! -e $debian/usr/bin/$page ]] || fail "the minimal system has $page"
    done
    cp "$packages"/*.deb "$debian/tmp/"
    check "installing $package by apt"
    expect 0 "" in_debian apt-get -qq -y --no-install-recommends install "/tmp/$package"
    expect 0 "" in_debian dpkg --verify loadline
    [[ -s $debian/usr/share/doc/loadline/book/index.html ]] || fail "the package has no book of the documentation"
    check "  the unit of nodes is there, and none is enabled"
    [[ -s $debian/usr/lib/systemd/system/loadline-node@.service ]] || fail "the package has no unit of nodes"
    [[ -z $(find "$debian/etc/systemd" -name '*loadline*' 2>/dev/null) ]] || fail "a node is enabled"
    has_files "$debian/usr/share/loadline"
    uses "$debian" /usr/bin/loadline /usr/share/loadline/studies
    check "its man pages, as man shows them, and its completions, in the shells that read them"
    expect 0 "" in_debian apt-get -qq update
    expect 0 "" in_debian apt-get -qq -y --no-install-recommends install man-db bash-completion zsh fish
    for page in loadline loadline-bench loadline-volume-create; do
        expect 0 "SYNOPSIS" in_debian env LC_ALL=C MANPAGER=cat man "$page"
    done
    expect 0 "loadline-bench" in_debian whatis loadline-bench
    expect 0 "doctor" in_debian bash -c '. /usr/share/bash-completion/bash_completion; _comp_load loadline 2>/dev/null || _completion_loader loadline
        COMP_WORDS=(loadline do) COMP_CWORD=1; _loadline loadline do loadline; echo "${COMPREPLY[@]}"'
    expect 0 "_loadline" in_debian zsh -c 'autoload -Uz compinit; compinit -u -d /tmp/dump; echo $_comps[loadline]'
    expect 0 "doctor" in_debian fish -c 'complete --do-complete "loadline do"'
    check "installing $symbols: the debug symbols are those of the program"
    expect 0 "" in_debian apt-get -qq -y --no-install-recommends install "/tmp/$symbols"
    id=$(readelf -n "$debian/usr/bin/loadline" | sed -n 's/.*Build ID: //p')
    [[ -s $debian/usr/lib/debug/.build-id/${id:0:2}/${id:2}.debug ]] || fail "no debug symbols of build $id"
    check "removing both: nothing is left"
    expect 0 "" in_debian apt-get -qq -y purge loadline loadline-dbgsym
    expect 0 "" in_debian bash -c '! find / -xdev -name "*loadline*" -not -path "/tmp/*" -not -path "/var/*" | grep .'
}

# apt works inside, with the network of this system.
in_debian() {
    mountpoint -q "$debian/proc" 2>/dev/null && fail "$debian is in use"
    unshare --mount --pid --fork --kill-child -- bash -c '
        mount -t proc proc "$1/proc"
        cp -L /etc/resolv.conf "$1/etc/resolv.conf"
        exec env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/ TERM=dumb DEBIAN_FRONTEND=noninteractive chroot "$@"' - "$debian" "$@"
}

static_program() {
    local archive name
    archive=$(basename "$packages"/loadline-*-static.tar.gz)
    name=${archive%.tar.gz}
    check "a root that holds nothing but what is in $archive"
    # Studies name /var/tmp.
    mkdir -p "$bare/var/tmp"
    tar -C "$bare" -xzf "$packages/$archive"
    ! readelf -l "$bare/$name/loadline" | grep -q INTERP || fail "the static program wants a loader"
    [[ -s $bare/$name/book/index.html ]] || fail "the folder has no book of the documentation"
    has_files "$bare/$name"
    uses "$bare" "/$name/loadline" "/$name/studies"
    expect 2 "static program" inside "$bare" "/$name/loadline" bench rbd:pool/image --profile B4-T1-O1-W0-PR
}

static_program
debian_package
echo "check: all good"
