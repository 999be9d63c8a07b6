#!/usr/bin/env bash
# Makes the packages: `./dev package` calls this when what it needs is there.
#
#   packaging/make.sh TARGET          cargo's folder; the packages are made in TARGET/packages
#
# TARGET/packaged/contents holds what both packages have beside the program, as it lies in them.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

target=$1
export CARGO_TARGET_DIR=$target
contents=$target/packaged/contents
packages=$target/packages
version=$(sed -n 's/^version *= *"\(.*\)"/\1/p' Cargo.toml | head -n 1)
machine=$(uname -m)
triple=$(rustc -vV | sed -n 's/^host: //p')

# What a file says of its time is the time of the commit, so that the same commit makes the same packages.
: "${SOURCE_DATE_EPOCH:=$(git log -1 --format=%ct 2>/dev/null || stat -c %Y CHANGELOG.md)}"
export SOURCE_DATE_EPOCH
# Neither the program nor its debug symbols name the folders of the machine that built them.
registry=${CARGO_HOME:-$HOME/.cargo}/registry/src
export RUSTFLAGS="${RUSTFLAGS:-} --remap-path-prefix=$PWD=/usr/src/loadline --remap-path-prefix=$registry=/usr/src/cargo"
export CFLAGS="${CFLAGS:-} -ffile-prefix-map=$registry=/usr/src/cargo -ffile-prefix-map=$target=/usr/src/target"

say() { printf 'package: %s\n' "$*"; }

# The licences of every library that the program is linked with, and of what the page of a report holds.
third_party_licenses() {
    local name number licence folder file
    echo "Loadline is linked with these Rust libraries, and the page of a report holds these of JavaScript."
    while read -r name number licence; do
        printf '\n======== %s %s: %s ========\n' "$name" "${number#v}" "$licence"
        for folder in "$registry"/*/"$name-${number#v}"; do
            find "$folder" -maxdepth 1 -type f \( -iname '*licen[cs]e*' -o -iname 'copying*' -o -iname 'notice*' \) | sort |
                while read -r file; do
                    printf '\n-------- %s --------\n' "${file##*/}"
                    cat "$file"
                done
        done
    done < <(cargo tree --locked -p loadline -e normal,no-proc-macro --prefix none --no-dedupe --format '{p} {l}' |
        sed 's/ (\*)$//' | grep -v '^loadline' | sort -u)
    echo
    echo "SQLite, which is in libsqlite3-sys, is in the public domain."
    if [[ -r /usr/share/doc/libc6/copyright ]]; then
        printf '\n======== glibc, in the static program ========\n\n'
        cat /usr/share/doc/libc6/copyright
    fi
    echo
    echo "The book of the documentation holds the style and scripts of mdBook (MPL-2.0), highlight.js (BSD-3-Clause), elasticlunr.js"
    echo "and mark.js (MIT), icons of Font Awesome (CC-BY-4.0, SIL OFL 1.1), and the fonts Open Sans (Apache-2.0) and Source Code Pro"
    echo "(SIL OFL 1.1)."
    for name in svelte uplot; do
        printf '\n======== %s ========\n\n' "$name"
        cat "web/node_modules/$name"/LICENSE*
    done
}

gather() {
    local manual=$target/packaged/manual
    rm -rf "$contents" "$manual"
    mkdir -p "$contents/doc" "$manual"
    say "writing the man pages and the shell completions"
    # Not with the flags above: these would compile everything anew for what is the same text.
    env -u RUSTFLAGS -u CFLAGS LOADLINE_MANUAL="$manual" \
        cargo test --locked --quiet -p loadline --bin loadline -- --exact manual::every_command_has_a_page_and_completions
    [[ -f $manual/man1/loadline.1 ]] || { echo "package: no man page was written" >&2; exit 1; }
    mv "$manual/man1" "$contents/man1"
    mkdir "$contents/completions"
    mv "$manual/bash" "$manual/zsh" "$manual/fish" "$contents/completions/"
    rmdir "$manual"
    cp -r docs README.md ARCHITECTURE.md CHANGELOG.md LICENSE-MIT LICENSE-APACHE "$contents/doc/"
    say "making the book of the documentation"
    packaging/book.sh "$target" "$contents/doc/book"
    cp -r studies "$contents/studies"
    cp -r packaging/grafana packaging/prometheus packaging/iscsi "$contents/"
    say "building the first process of virtual machines"
    env -u SOURCE_DATE_EPOCH app/guest-init/build.sh "$target" "$contents/guest"
    third_party_licenses >"$contents/doc/third-party-licenses.txt"
    find "$contents" -type d -exec chmod 755 {} +
    find "$contents" -type f -exec chmod 644 {} +
}

# Without the time of the commit, which is in no program, but would compile SQLite anew for each commit.
build() { env -u SOURCE_DATE_EPOCH cargo build --locked --profile packaged -p loadline "$@"; }

# The program is copied to each host of a fleet, so it stays small: bytes, without debug symbols. It had 15 MB before it had the client of
# etcd and TLS, 19.5 before fleets by SSH, services, and studies of running clusters, and 22 before the console.
most=25000000

is_small() {
    local size
    size=$(stat --format %s "$1")
    say "the program has $size bytes; it may have $most"
    ((size <= most)) || { echo "package: $1 is too large: look what is in it (nm --size-sort -C)" >&2; exit 1; }
}

debian_packages() {
    local made
    say "building the program"
    build
    gzip -9nf "$contents/doc/third-party-licenses.txt"
    rm -rf "$target/packaged/debian" && mkdir "$target/packaged/debian"
    "$target/tools/bin/cargo-deb" -p loadline --profile packaged --no-build --locked --dbgsym \
        --compress-debug-symbols=zlib --output "$target/packaged/debian" >/dev/null
    for made in "$target"/packaged/debian/*; do
        mv "$made" "$packages/$(basename "${made%.*}").deb"
    done
    gunzip "$contents/doc/third-party-licenses.txt.gz"
    strip -o "$target/packaged/stripped" "$target/packaged/loadline"
    is_small "$target/packaged/stripped"
}

# Linked with glibc, as the other program is: musl has another allocator and other copies of memory, so its figures would be of
# another program; and virtio-driver does not compile for it.
static_program() {
    local name=loadline-$version-$machine-static folder
    say "building the static program"
    RUSTFLAGS="$RUSTFLAGS -C target-feature=+crt-static" \
        build --target "$triple"
    folder=$target/packaged/$name
    rm -rf "$folder" && cp -r "$contents/doc" "$folder"
    cp -r "$contents/studies" "$contents/grafana" "$contents/prometheus" "$contents/iscsi" "$contents/completions" "$folder/"
    mkdir "$folder/man" && cp -r "$contents/man1" "$folder/man/man1"
    strip -o "$folder/loadline" "$target/$triple/packaged/loadline"
    cp "$contents/guest/guest-init" "$folder/"
    chmod 755 "$folder/loadline" "$folder/guest-init"
    tar -C "$target/packaged" --sort=name --mtime="@$SOURCE_DATE_EPOCH" --owner=0 --group=0 --numeric-owner -c "$name" |
        gzip -9n >"$packages/$name.tar.gz"
    rm -rf "$folder"
}

rm -rf "$packages" && mkdir -p "$packages"
gather
debian_packages
static_program
stat --printf '%s %n\n' "$packages"/* | awk '{ sub(".*/", "", $2); printf "package: %6.1f MB  %s\n", $1 / 1e6, $2 }'
say "they are in $packages"
