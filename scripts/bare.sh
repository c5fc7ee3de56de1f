#!/usr/bin/env bash
# bare.sh [SUITE]   runs the README's two commands, word for word, as on a newcomer's machine
#
# It makes a minimal Debian root (bookworm, or SUITE) outside this checkout, with ca-certificates, git and make in it and this
# machine's Go, and runs each command there as root in a fresh clone of its own of HEAD. Needs root, debootstrap (installed where it
# is missing) and namespaces; where a root cannot be made it fails and says so. Of this machine the root has the network's settings:
# resolver, certificates, apt's options and Go's proxy.
set -euo pipefail
cd "$(dirname "$0")/.."

suite=${1:-bookworm}
fail() { printf 'bare: %s\n' "$*" >&2; exit 1; }

# commands are the README's, from the section that a newcomer reads first.
mapfile -t commands < <(sed -n '/^## Try it/,/^## Use it/{s/^\(make [a-z-]*\) .*#.*/\1/p}' README.md)
[ ${#commands[@]} -eq 2 ] || fail "README.md: ${#commands[@]} commands below Try it, want 2"

[ "$(id -u)" = 0 ] || fail "a root can be made by root only"
command -v debootstrap >/dev/null || { apt-get update -q && apt-get install -qy --no-install-recommends debootstrap; } ||
  fail "debootstrap cannot be installed"
# mirror is where this machine's apt has Debian from; it knows of none before its first update.
mirror() {
  apt-get indextargets --format '$(REPO_URI) $(RELEASE) $(CREATED_BY)' | awk '$2 == "bookworm" && $3 == "Packages" && !found++ {print $1}'
}
mirror=$(mirror)
[ -n "$mirror" ] || { apt-get update -q && mirror=$(mirror); } || fail "apt cannot be brought up to date"
[ -n "$mirror" ] || fail "apt knows no mirror of Debian"

root=$(mktemp -d "${TMPDIR:-/tmp}/bare.XXXXXX")
trap 'rm -rf --one-file-system "$root"' EXIT
chmod 755 "$root" # apt fetches as a user of its own
debootstrap --variant=minbase --include=ca-certificates,git,make "$suite" "$root" "$mirror" >"$root.log" 2>&1 ||
  { tail -20 "$root.log" >&2; fail "debootstrap of $suite failed"; }
rm -f "$root.log"
cp /etc/resolv.conf /etc/hosts "$root/etc/"
cp /etc/ssl/certs/ca-certificates.crt "$root/etc/ssl/certs/"
grep -lis '^Acquire' /etc/apt/apt.conf.d/* | xargs -r cp -t "$root/etc/apt/apt.conf.d/"
mkdir "$root/usr/local/go"

settings=(HOME=/root "PATH=/usr/local/go/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin" LANG=C.UTF-8
  "GOPROXY=$(go env GOPROXY)" "GOSUMDB=$(go env GOSUMDB)" "GONOSUMDB=$(go env GONOSUMDB)")
for name in http_proxy https_proxy no_proxy; do
  [ -z "${!name:-}" ] || settings+=("$name=${!name}")
done

# inside runs a command of the root, in namespaces that end with it, and with it every process and mount.
inside() {
  unshare --mount --pid --fork --kill-child --mount-proc="$root/proc" bash -c '
    set -e
    mount --rbind /dev "$1/dev"
    mount --rbind /sys "$1/sys"
    mount --bind -o ro "$2" "$1/usr/local/go"
    root=$1
    shift 2
    exec chroot "$root" /usr/bin/env -i "$@"' bare "$root" "$(go env GOROOT)" "${settings[@]}" "$@"
}

failed=()
for command in "${commands[@]}"; do
  clone=/root/${command// /-}
  git clone -q --no-hardlinks . "$root$clone"
  from=$SECONDS
  printf '\n== bare %s: %s\n' "$suite" "$command"
  if inside bash -c "cd $clone && $command"; then
    printf '== bare %s: %s: ok, %d s\n' "$suite" "$command" $((SECONDS - from))
  else
    printf '== bare %s: %s: FAILED after %d s\n' "$suite" "$command" $((SECONDS - from)) >&2
    failed+=("$command")
  fi
  rm -rf "$root$clone"
done
[ ${#failed[@]} -eq 0 ] || fail "failed: ${failed[*]}"
