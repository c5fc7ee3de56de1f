#!/usr/bin/env bash
# capi.sh OUT [flag]...   the session's library for C, into the file OUT, with more flags of go build
#
# It has the names of capi/gradbus.h and no others, no path of this machine, and no build id.
set -euo pipefail
out=$(realpath -m "$1")
shift
cd "$(dirname "$0")/.."
go build -buildmode=c-shared -trimpath -ldflags="-buildid= -s -w '-extldflags=\"-Wl,--version-script=$PWD/capi/exports.map\"'" -o "$out" "$@" ./capi
rm -f "${out%.so}.h" # cgo's own, of functions that nobody is to call
