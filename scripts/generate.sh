#!/bin/sh
# generate.sh: writes schema/wire from schema/gradbus.fbs.
#
#   scripts/generate.sh          writes schema/wire
#   scripts/generate.sh DIR      writes the same files into DIR and leaves the tree alone, so that they can be compared
#
# Needs flatc (Debian: flatbuffers-compiler) and gofmt. The committed code is flatc 2.0.8's.
set -eu
cd "$(dirname "$0")/.."
out=${1:-schema/wire}

flatc=$(command -v flatc) || {
	echo "generate: flatc not found; on Debian: apt install flatbuffers-compiler" >&2
	exit 1
}
case $("$flatc" --version) in
*" 2.0.8") ;;
*) echo "generate: note: this is $("$flatc" --version); the committed code was made by 2.0.8" >&2 ;;
esac

fresh=$(mktemp -d)
trap 'rm -rf "$fresh"' EXIT
"$flatc" --go -o "$fresh" schema/gradbus.fbs
gofmt -w "$fresh"/wire/*.go
mkdir -p "$out"
rm -f "$out"/*.go
cp "$fresh"/wire/*.go "$out"/
