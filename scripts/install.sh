#!/usr/bin/env bash
# install.sh   puts what `make` built below PREFIX, and first DESTDIR where a package is made
#
#   bin/gradbus-ps, gradbus-trainer, gradbus-psbench    PROGRAM_PREFIX= installs them as ps, trainer and psbench; mind procps's ps
#   lib/libgradbus.a, libgradbus.so                     the shared one where it was built
#   include/gradbus.h                                   the C interface
#   lib/gradbus/libgradbus.so, include/gradbus/gradbus.h   a session for C, where make capi built it, and its pkg-config file gradbus-session
#   lib/pkgconfig/gradbus.pc, gradbus-static.pc         gradbus-static is what Go's build reads, with the tags native,installed
#   share/man/man1, share/bash-completion, share/zsh, share/fish, share/doc/gradbus
#
# PREFIX is /usr/local where it is not set; LIBDIR is PREFIX/lib. PC_PREFIX is what the pkg-config files call the prefix: PREFIX, or
# a path from their own folder, ${pcfiledir}/../.., where the whole may be moved.
set -euo pipefail
cd "$(dirname "$0")/.."

fail() {
  echo "install: $*" >&2
  exit 1
}
prefix=${PREFIX:-/usr/local}
program=${PROGRAM_PREFIX-gradbus-}
programs=${PROGRAMS:-bin} # where they are
session=${SESSION:-build/capi}
case $prefix in /*) ;; *) fail "PREFIX $prefix: want an absolute path" ;; esac
case ${DESTDIR:-/} in /*) ;; *) fail "DESTDIR $DESTDIR: want an absolute path" ;; esac
prefix=${prefix%/}
to=${DESTDIR:-}$prefix
lib=${LIBDIR:-$prefix/lib}
case $lib in "$prefix"/*) lib=${lib#"$prefix"/} ;; *) fail "LIBDIR $lib: want a folder below PREFIX $prefix" ;; esac
commands=(ps trainer psbench)
for c in "${commands[@]}"; do [ -x "$programs/$c" ] || fail "no $programs/$c: run make first"; done
[ -e build/libgradbus.a ] || fail "no build/libgradbus.a: run make first"

version=$(sed -n 's/^const Version = "\(.*\)"$/\1/p' gradbus.go)
hash=$(sha256sum build/libgradbus.a | cut -d' ' -f1)
needs="-lstdc++ -lm -ldl -lrt -lpthread"

# config NAME DESCRIPTION LINES... writes a pkg-config file.
config() {
  local name=$1 description=$2
  shift 2
  printf '%s\n' "prefix=${PC_PREFIX:-$prefix}" "libdir=\${prefix}/$lib" "includedir=\${prefix}/include" "" \
    "Name: $name" "Description: $description" "Version: $version" "$@" >"$to/$lib/pkgconfig/$name.pc"
  chmod 644 "$to/$lib/pkgconfig/$name.pc"
}

mkdir -p "$to/bin" "$to/include" "$to/$lib/pkgconfig" "$to/share/doc/gradbus"
install -m 644 csrc/include/gradbus.h "$to/include/"
install -m 644 build/libgradbus.a "$to/$lib/"
[ ! -e build/libgradbus.so ] || install -m 755 build/libgradbus.so "$to/$lib/"
config gradbus "arithmetic of gradbus: embedding bags, sums of gradients, optimizers" \
  "Cflags: -I\${includedir}" "Libs: -L\${libdir} -lgradbus" "Libs.private: $needs"
config gradbus-static "arithmetic of gradbus, as an archive" \
  "Cflags: -I\${includedir} -DGRADBUS_INSTALLED=$hash" "Libs: \${libdir}/libgradbus.a $needs"
if [ -e "$session/libgradbus.so" ]; then
  mkdir -p "$to/$lib/gradbus" "$to/include/gradbus"
  install -m 755 "$session/libgradbus.so" "$to/$lib/gradbus/"
  install -m 644 capi/gradbus.h "$to/include/gradbus/"
  config gradbus-session "a session of gradbus: training from C" \
    "Cflags: -I\${includedir}/gradbus" "Libs: -L\${libdir}/gradbus -Wl,-rpath,\${libdir}/gradbus -lgradbus"
fi
install -m 644 LICENSE README.md "$to/share/doc/gradbus/"

bash=$to/share/bash-completion/completions zsh=$to/share/zsh/site-functions fish=$to/share/fish/vendor_completions.d
mkdir -p "$bash" "$zsh" "$fish" "$to/share/man/man1"
for c in "${commands[@]}"; do
  at=$to/bin/$program$c
  install -m 755 "$programs/$c" "$at" # under its own name: what it says of itself it takes from there
  self() { PATH=$to/bin:$PATH "$program$c" "$@"; } # started by its name, so that no page has a path of this machine
  self completion bash >"$bash/$program$c"
  self completion zsh >"$zsh/_$program$c"
  self completion fish >"$fish/$program$c.fish"
  self man "$to/share/man/man1"
done
find "$to/share/man/man1" -name '*.1' -exec chmod 644 {} +
echo "install: gradbus $version in $to"
case $lib in lib) ;; *) echo "install: its pkg-config files are in $to/$lib/pkgconfig" ;; esac
