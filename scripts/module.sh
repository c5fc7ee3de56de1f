#!/usr/bin/env bash
# module.sh PATH      gives the module another path, everywhere, for whoever hosts it: module.sh github.com/me/gradbus
# module.sh --check   in a copy: after another path it builds, vets and holds its rules, and the way back leaves no difference
#
# It changes go.mod, imports, the modules of examples/, the constant of internal/rules and the documents, as git lists them.
set -euo pipefail
cd "$(dirname "$0")/.."
fail() {
  echo "module: $*" >&2
  exit 1
}

if [ "${1:-}" = --check ]; then
  work=$(mktemp -d)
  trap 'rm -rf "$work"' EXIT
  git clone -q . "$work/tree"
  cp scripts/module.sh "$work/tree/scripts/"
  cd "$work/tree"
  git -c user.name=check -c user.email=check@example.org commit -qam "module.sh as it is here" || true
  was=$(go list -m)
  export CGO_ENABLED=0
  scripts/module.sh github.com/me/gradbus
  go build ./... && go vet ./... && go test -count 1 ./internal/rules
  (cd examples/outside && go vet ./...)
  [ -z "$(gofmt -l .)" ] || fail "gofmt: $(gofmt -l .)"
  scripts/module.sh "$was"
  git diff --exit-code || fail "the way back to $was left a difference"
  echo "module: ok"
  exit
fi

new=${1:-}
[[ $new =~ ^[a-z0-9._~-]+(/[A-Za-z0-9._~-]+)*$ ]] || fail "path '$new': want one such as github.com/me/gradbus"
old=$(go list -m)
[ "$new" != "$old" ] || { echo "module: it is $old already"; exit; }

# What a path begins that stands where no longer path, address or name can end: in imports, tables of packages, profiles, documents.
folders=$(git ls-files | sed -n 's,/.*,,p' | sort -u | paste -sd'|')
export old new folders
git ls-files -z '*.go' '*.md' '*.sh' '*.mod' Makefile .ci/run | xargs -0 perl -pi -e '
  BEGIN { ($old, $new) = (quotemeta $ENV{old}, $ENV{new}) }
  s{(?<![\w./~-])$old(?=/(?:$ENV{folders})\b)}{$new}g;
  if ($ARGV =~ /\.go$/) {
    s{^((?:import )?\s*(?:\w+ )?)"$old"$}{$1"$new"};
    s{^const module = "$old"$}{const module = "$new"};
  }
  if ($ARGV =~ /\.mod$/) { s{^((?:module|require|replace|\t) ?)$old(?=\s)}{$1$new} }'
[ "$(go list -m)" = "$new" ] || fail "go.mod has $(go list -m)"
gofmt -l . | grep -v '^build/' >&2 && fail "gofmt would change these"
echo "module: $old is $new"
