#!/usr/bin/env bash
# outside.sh   tries what make built as somebody does who uses it from elsewhere
#
# It installs into a temporary prefix, and builds and tests examples/outside against that from a copy of the committed files, which has
# no build/: once portable, once native. Then it installs another library, which Go's caches must notice, and links a C program.
set -euo pipefail
cd "$(dirname "$0")/.."
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
fail() {
  echo "outside: $*" >&2
  exit 1
}
command -v pkg-config >/dev/null || fail "there is no pkg-config: scripts/deps.sh tools installs it"
[ -e build/libgradbus.a ] || fail "no build/libgradbus.a: run make first"

PREFIX=$work/prefix scripts/install.sh
mkdir "$work/tree"
git archive HEAD | tar -x -C "$work/tree"
cd "$work/tree/examples/outside"
if [ -e ../../build ] || [ -e ../../cuda/native_stamp.h ]; then fail "the copy has a native build"; fi

CGO_ENABLED=0 go test -count 1 . -args -backend go
if go build -tags native -o "$work/none" . 2>"$work/why"; then fail "native without a library: it built"; fi
grep -q 'native,installed' "$work/why" || fail "native without a library: $(cat "$work/why")"

export PKG_CONFIG_PATH=$work/prefix/lib/pkgconfig
native() { CGO_CPPFLAGS=$(pkg-config --cflags gradbus-static) go build -v -tags native,installed -o "$work/outside" . 2>&1; }
CGO_CPPFLAGS=$(pkg-config --cflags gradbus-static) go test -count 1 -tags native,installed . -args -backend cpu
native >/dev/null
"$work/outside" -batches 5 | grep ' by cpu$' || fail "the native program has another backend"
[ -z "$(native)" ] || fail "Go built again what had not changed"
: >"$work/more.c"
cc -c "$work/more.c" -o "$work/more.o"
ar q "$work/prefix/lib/libgradbus.a" "$work/more.o"
hash=$(sha256sum "$work/prefix/lib/libgradbus.a" | cut -d' ' -f1) # as install.sh writes it for a library that make changed
sed -i "s/GRADBUS_INSTALLED=[0-9a-f]*/GRADBUS_INSTALLED=$hash/" "$PKG_CONFIG_PATH/gradbus-static.pc"
built=$(native)
grep -q '/cuda$' <<<"$built" || fail "Go did not notice another library, and built: $built"

cat >"$work/abi.c" <<'C'
#include <stdio.h>
#include "gradbus.h"
int main(void) {
  const gb_api* api = gb_backend(GB_ABI);
  if (api == NULL) return 1;
  puts(api->name);
  return 0;
}
C
read -ra static <<<"$(pkg-config --cflags --libs gradbus-static)"
cc "$work/abi.c" -o "$work/static" "${static[@]}"
[ "$("$work/static")" = cpu ] || fail "a C program with the archive does not run"
if [ -e "$work/prefix/lib/libgradbus.so" ]; then
  read -ra shared <<<"$(pkg-config --cflags --libs gradbus)"
  cc "$work/abi.c" -o "$work/shared" "${shared[@]}"
  [ "$(LD_LIBRARY_PATH=$work/prefix/lib "$work/shared")" = cpu ] || fail "a C program with the shared library does not run"
fi
for page in gradbus-ps gradbus-trainer gradbus-psbench; do
  [ -s "$work/prefix/share/man/man1/$page.1" ] && grep -q "$page" "$work/prefix/share/bash-completion/completions/$page" &&
    [ "$("$work/prefix/bin/$page" version | head -c ${#page})" = "$page" ] || fail "$page: its man page, completion or name is not there"
done
echo "outside: ok"
