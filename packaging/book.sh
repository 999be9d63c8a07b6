#!/usr/bin/env bash
# Makes the documentation as a book, HTML that needs no network: `./dev docs` and packaging/make.sh call this.
#
#   packaging/book.sh TARGET OUT      cargo's folder, in which mdBook is (TARGET/tools); the folder of the book, which is replaced
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

mdbook=$1/tools/bin/mdbook
book=$2

if [[ ! -x $mdbook ]]; then
    echo "book: mdBook is missing ($mdbook). Run ./dev setup --package, or ./dev setup --docs, then try again." >&2
    exit 2
fi
rm -rf "$book"
"$mdbook" build --dest-dir "$(realpath -m "$book")" .
# A README is the index of its folder.
find "$book" -name '*.html' -exec sed -i 's#README\.html#index.html#g' {} +
[[ -f $book/index.html ]] || { echo "book: mdBook wrote no $book/index.html" >&2; exit 1; }
