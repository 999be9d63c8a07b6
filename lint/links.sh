#!/usr/bin/env bash
# Checks the links of the documentation: `./dev lint` and `./dev docs` call this.
#
#   lint/links.sh                lists each broken link with its file and line; exit code 1 if there is one
#
# Checked are, in every Markdown file of the repository: relative links to files and folders, and anchors (`page.md#heading`,
# `#heading`); in docs/SUMMARY.md: that the book has every page of docs/; in every other text file: that a page which it names
# (docs/….md) exists. Addresses (https://…) are not fetched.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

files() { find . \( -path ./.git -o -path ./target -o -path ./runs -o -path ./web/dist -o -name node_modules \) -prune -o -type f "$@" -printf '%P\n' | sort; }

mapfile -t pages < <(files -name '*.md')
broken=0
broken() {
    printf '%s: %s\n' "$1" "$2"
    broken=1
}

# One line for each heading (`A file anchor`) and for each link (`L file line target`). Code is no text.
read_pages() {
    awk '
        FNR == 1 { fence = ""; split("", seen) }
        {
            line = $0
            sub(/^[ >]*/, "", line)
            if (fence == "" && match(line, /^(```+|~~~+)/)) { fence = substr(line, 1, RLENGTH); next }
            if (fence != "") { if (index(line, fence) == 1) fence = ""; next }
        }
        /^#+ / {
            anchor = tolower($0)
            sub(/^#+ +/, "", anchor)
            gsub(/\]\([^)]*\)/, "", anchor)
            gsub(/[^a-z0-9 _-]/, "", anchor)
            gsub(/ /, "-", anchor)
            print "A", FILENAME, anchor (seen[anchor] ? "-" seen[anchor] : "")
            seen[anchor]++
        }
        {
            gsub(/`[^`]*`/, "")
            while (match($0, /\]\([^()]*(\([^()]*\)[^()]*)*\)/)) {
                target = substr($0, RSTART + 2, RLENGTH - 3)
                $0 = substr($0, RSTART + RLENGTH)
                sub(/ +".*"$/, "", target)
                print "L", FILENAME, FNR, target
            }
        }
        /^\[[^]]+\]: / { print "L", FILENAME, FNR, $2 }
    ' "${pages[@]}"
}

declare -A anchors=() in_book=()
links=()
while read -r kind page rest; do
    if [[ $kind == A ]]; then
        anchors["$page#$rest"]=1
    else
        links+=("$page $rest")
    fi
done < <(read_pages)

for link in "${links[@]}"; do
    read -r page line target <<<"$link"
    case $target in
    http://* | https://* | mailto:*) continue ;;
    "" | /*) broken "$page:$line" "a link must be relative, not '$target'" && continue ;;
    esac
    path=${target%%#*}
    if [[ -z $path ]]; then
        file=$page
    else
        file=$(realpath -m -s --relative-to=. "$(dirname "$page")/$path")
        [[ -e $file ]] || { broken "$page:$line" "there is no $file (link '$target')" && continue; }
    fi
    [[ $page != docs/SUMMARY.md ]] || in_book[$file]=1
    [[ $target != *'#'* || $file != *.md || -n ${anchors["$file#${target#*#}"]:-} ]] ||
        broken "$page:$line" "$file has no heading '#${target#*#}'"
done

for page in "${pages[@]}"; do
    [[ $page != docs/*.md || $page == docs/SUMMARY.md || -n ${in_book[$page]:-} ]] ||
        broken "$page:1" "docs/SUMMARY.md does not list this page"
done

while IFS=: read -r file line page; do
    [[ -e $page ]] || broken "$file:$line" "there is no $page"
done < <(files -not -name '*.md' -not -name package-lock.json | tr '\n' '\0' |
    xargs -0 grep -nHIoE 'docs/[A-Za-z0-9_/-]+\.(md|yml|json)' -- || true)

exit "$broken"
