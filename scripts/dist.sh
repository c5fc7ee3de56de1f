#!/usr/bin/env bash
# dist.sh   build/dist/gradbus-VERSION-linux-ARCH.tar.gz and SHA256SUMS, of what `make` built from this commit
#
# One commit gives the same bits wherever compilers, Go and CUDA are the same: the files are sorted, owned by root and dated by the
# commit, and the programs are built here without paths of this machine. A tree with changes is refused, or called -modified with
# MODIFIED=yes. The archive holds what make install installs, LICENSE, README.md, docs/ and what of deploy/ needs no sources; its programs
# have their short names in bin/, and its pkg-config files hold wherever it is unpacked. It is unpacked again, and has every file
# that its deploy/ names.
set -euo pipefail
cd "$(dirname "$0")/.."
fail() {
  echo "dist: $*" >&2
  exit 1
}
version=$(sed -n 's/^const Version = "\(.*\)"$/\1/p' gradbus.go)
if [ -n "$(git status --porcelain)" ]; then
  [ "${MODIFIED:-}" = yes ] || fail "the tree has changes: commit them, or say MODIFIED=yes"
  version=$version-modified
fi
[ -e build/libgradbus.a ] || fail "no build/libgradbus.a: run make first"
SOURCE_DATE_EPOCH=$(git log -1 --format=%ct)
export SOURCE_DATE_EPOCH

name=gradbus-$version-linux-$(go env GOARCH)
out=build/dist
rm -rf "$out"
mkdir -p "$out/bin"
# Without build ids, which Go and the linker make of paths.
go build -tags native -trimpath -buildmode=pie -ldflags='-buildid= -s -w' -o "$out/bin/" ./cmd/ps ./cmd/trainer ./cmd/psbench
scripts/capi.sh "$out/session/libgradbus.so" -tags native
PREFIX=/ DESTDIR=$PWD/$out/$name PC_PREFIX='${pcfiledir}/../..' PROGRAM_PREFIX='' PROGRAMS=$out/bin SESSION=$out/session scripts/install.sh >/dev/null
rm -rf "${out:?}/bin" "${out:?}/session" "${out:?}/$name/share/doc"
cp -R LICENSE README.md CHANGELOG.md CONTRIBUTING.md SECURITY.md docs deploy "$out/$name/"
rm "$out/$name"/deploy/{Dockerfile,compose.yaml} "$out/$name"/docs/*.go # which need the sources
# What the programs ask of a machine.
for file in bin/ps bin/trainer bin/psbench lib/gradbus/libgradbus.so; do objdump -T "$out/$name/$file"; done | grep -o 'GLIBC_[0-9.]*\|GLIBCXX_[0-9.]*' | sort -uV |
  awk -F_ '{last[$1] = $0} END {for (k in last) print last[k]}' | sort >"$out/$name/NEEDS"
chmod -R u=rwX,go=rX "$out/$name"
tar --sort=name --owner=0 --group=0 --numeric-owner --format=gnu --mtime="@$SOURCE_DATE_EPOCH" -C "$out" -cf - "$name" | gzip -9n >"$out/$name.tar.gz"
rm -rf "${out:?}/$name"
mkdir "$out/unpacked"
tar -C "$out/unpacked" -xzf "$out/$name.tar.gz"
scripts/dist_check.sh "$out/unpacked/$name" || fail "the archive misses files that its deploy/ names"
rm -rf "$out/unpacked"
(cd "$out" && sha256sum "$name.tar.gz" >SHA256SUMS && cat SHA256SUMS)
