#!/usr/bin/env bash
# verify.sh: writes the generated code again, into a folder of its own, and compares it with what is committed.
set -euo pipefail
cd "$(dirname "$0")/.."
fresh=$(mktemp -d)
trap 'rm -rf "$fresh"' EXIT
scripts/generate.sh "$fresh"
if ! diff -r "$fresh" schema/wire; then
  echo "verify: schema/wire differs from what schema/gradbus.fbs gives; run scripts/generate.sh" >&2
  exit 1
fi
if ! go test ./schema -count=1 -run '^TestFingerprint$' >"$fresh/fingerprint" 2>&1; then
  cat "$fresh/fingerprint" >&2
  exit 1
fi
echo "verify: ok"
