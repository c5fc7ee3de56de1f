#!/usr/bin/env bash
# bare.sh [SUITE [PART...]]   runs the README's commands, word for word, as on a newcomer's machine
#
# It makes a minimal Debian root (bookworm, or SUITE) outside this checkout, with ca-certificates, git and make in it and this
# machine's Go, nothing else and no list of apt's, and runs there each of these parts, or those named, in fresh clones of HEAD:
#
#   demo   the first command of Quickstart, as a user with sudo; nothing but sudo has been installed before, and nothing compiled
#   use    the commands of the sections after Quickstart, in order in one clone, the server beside them until the last has ended
#   torch  the second command of Quickstart, as root: Debian's PyTorch is installed, the package as its wheel
#   odd    the first command where much is unusual at once, and that a missing Go is said in one line
#   test   the last command of Quickstart, as root
#
# demo, use, torch and odd share a root, as on one person's machine; test begins with a root of its own. Go's caches of demo are copied
# for the other parts: what they save is compiled and fetched the same way there. Nothing else is shared.
#
# Needs root, debootstrap (installed where it is missing) and namespaces; where a root cannot be made it fails and says so. Of this
# machine the root has the network with its settings: resolver, certificates, apt's options and Go's proxy; and its ports, of which
# use takes 4222 and 8080.
set -euo pipefail
cd "$(dirname "$0")/.."

suite=${1:-bookworm}
[ $# -eq 0 ] || shift
parts=" ${*:-demo use torch odd test} "
fail() { printf 'bare: %s\n' "$*" >&2; exit 1; }
for part in $parts; do
  [[ $part =~ ^(demo|use|torch|odd|test)$ ]] || fail "unknown part $part (want demo, use, torch, odd or test)"
done

# commands prints the lines of the README's blocks of sh, those of Quickstart or those of the sections after it.
commands() {
  awk -v want="$1" '
    /^```/ { open = !open; sh = open && $0 == "```sh"; next }
    !open && /^## / { started = started || at == "Quickstart"; at = substr($0, 4) }
    sh && NF && !/^#/ && (want == "quickstart" ? at == "Quickstart" : started) { print }' README.md
}
mapfile -t quickstart < <(commands quickstart)
mapfile -t use < <(commands use)
told=$(printf '%s\n' "${quickstart[@]}" | sed 's/ *#.*//' | paste -sd,)
[[ $told =~ ^make\ demo,make\ demo-torch,make\ test$ ]] ||
  fail "README.md: the block of sh below Quickstart has $told; want make demo, make demo-torch and make test"
count() { printf '%s\n' "${use[@]}" | grep -c "$1" || true; }
[ "$(count '^make && \./bin/ps *\(#.*\)\?$')" = 1 ] || fail "README.md: after Quickstart, want one line of sh: make && ./bin/ps"
[ "$(count '# weights sha256 ')" -ge 2 ] || fail "README.md: after Quickstart, want two lines of sh that show their # weights sha256"

[ "$(id -u)" = 0 ] || fail "a root can be made by root only"
scripts/deps.sh --check go || fail "this machine has no Go to lend"
command -v debootstrap >/dev/null || { apt-get update -q && apt-get install -qy --no-install-recommends debootstrap; } ||
  fail "debootstrap cannot be installed"
# mirror is where this machine's apt has Debian from; it knows of none before its first update.
mirror() {
  # shellcheck disable=SC2016 # the words are apt's
  apt-get indextargets --format '$(REPO_URI) $(LABEL) $(CREATED_BY)' | awk '$2 == "Debian" && $3 == "Packages" && !found++ {print $1}'
}
mirror=$(mirror)
[ -n "$mirror" ] || { apt-get update -q && mirror=$(mirror); } || fail "apt cannot be brought up to date"
[ -n "$mirror" ] || fail "apt knows no mirror of Debian"

work=$(mktemp -d "${TMPDIR:-/tmp}/bare.XXXXXX")
trap 'rm -rf --one-file-system "$work"' EXIT
chmod 755 "$work" # apt fetches as a user of its own
printf '\n== bare %s: a root from %s\n' "$suite" "$mirror"
# Mirrors fail for moments. What debootstrap's own commands say is in a file of the root, under one of two names.
for attempt in 1 2 3; do
  debootstrap --variant=minbase --include=ca-certificates,git,make "$suite" "$work/pristine" "$mirror" >"$work/log" 2>&1 && break
  printf 'bare: debootstrap of %s ended with status %d\n' "$suite" $? >&2
  tail -n 5 "$work/log" "$work"/pristine/debootstrap/debootstrap.log "$work"/pristine/var/log/bootstrap.log >&2 2>/dev/null || true
  [ $attempt -lt 3 ] || fail "a root of $suite cannot be made"
  rm -rf --one-file-system "$work/pristine"
  sleep $((10 * attempt))
done
cp /etc/resolv.conf /etc/hosts "$work/pristine/etc/"
cp /etc/ssl/certs/ca-certificates.crt "$work/pristine/etc/ssl/certs/"
grep -lis '^Acquire' /etc/apt/apt.conf.d/* | xargs -r cp -t "$work/pristine/etc/apt/apt.conf.d/"
rm -rf "$work/pristine"/var/lib/apt/lists/*
mkdir "$work/pristine/usr/local/go"

settings=(HOME=/root "PATH=/usr/local/go/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin" LANG=C.UTF-8
  "GOPROXY=$(go env GOPROXY)" "GOSUMDB=$(go env GOSUMDB)" "GONOSUMDB=$(go env GONOSUMDB)")
for name in http_proxy https_proxy no_proxy; do
  [ -z "${!name:-}" ] || settings+=("$name=${!name}")
done

# inside ROOT COMMAND... runs a command of the root, in namespaces that end with it, and with it every process and mount.
inside() {
  local root=$work/$1
  shift
  [ -d "$root" ] || cp -a "$work/pristine" "$root"
  # shellcheck disable=SC2016 # for the shell inside
  unshare --mount --pid --fork --kill-child --mount-proc="$root/proc" bash -c '
    set -e
    mount --rbind /dev "$1/dev"
    mount --rbind /sys "$1/sys"
    mount --bind -o ro "$2" "$1/usr/local/go"
    root=$1
    shift 2
    exec chroot "$root" /usr/bin/env -i "$@"' bare "$root" "$(go env GOROOT)" "${settings[@]}" "$@" </dev/null
}

# clone ROOT FOLDER [OPTION...] puts a clone of HEAD there.
clone() {
  local root=$1 folder=$2
  shift 2
  inside "$root" mkdir -p "$(dirname "$folder")" && rm -rf "${work:?}/$root$folder" &&
    git -c advice.detachedHead=false clone -q "$@" "file://$PWD" "$work/$root$folder"
}

# caches ROOT copies those of demo to root's home there, where it has got as far as that and the root has none.
caches() {
  local home=$work/first/home/newcomer
  [ ! -d "$home/.cache/go-build" ] || [ -d "$work/$1/root/go" ] || cp -a "$home/go" "$home/.cache" "$work/$1/root/"
}

run_demo() {
  inside first bash -c 'apt-get -qq update && apt-get -qq install --no-install-recommends sudo >/dev/null &&
    rm -rf /var/lib/apt/lists/* && useradd -m -s /bin/bash newcomer && echo "newcomer ALL=(ALL) NOPASSWD: ALL" >/etc/sudoers.d/newcomer' &&
    clone first /home/newcomer/gradbus && inside first chown -R newcomer: /home/newcomer &&
    inside first su newcomer -c "cd ~/gradbus && ${quickstart[0]}"
}

# used COMMAND... runs inside the root: each within ten minutes, the server in the background.
used() {
  local line server='' digest digests=() wrong=0 deadline
  for line; do
    printf '\n-- %s\n' "$line"
    if [[ $line =~ ^'make && ./bin/ps' ]]; then
      make || return
      bash -c "exec ${line#make && }" >/tmp/server 2>&1 &
      server=$!
      deadline=$((SECONDS + 60))
      until (exec 3<>/dev/tcp/127.0.0.1/4222 4<>/dev/tcp/127.0.0.1/8080) 2>/dev/null && kill -0 $server 2>/dev/null; do
        if ! kill -0 $server 2>/dev/null || [ $SECONDS -ge $deadline ]; then
          cat /tmp/server
          echo "bare: the server does not answer on 4222 and 8080" >&2
          return 1
        fi
        sleep 0.1
      done
      cat /tmp/server
      continue
    fi
    timeout --kill-after=5 600 bash -c "$line" >/tmp/out 2>&1 || {
      echo "bare: status $?: $line" >&2
      wrong=1
    }
    cat /tmp/out
    [[ $line != *'# weights sha256 '* ]] || {
      digest=$(sed -n 's/^weights *sha256 \([0-9a-f]\{64\}\)$/\1/p' /tmp/out)
      digests+=("${digest:-none}")
    }
  done
  { kill -INT "$server" && wait "$server"; } || {
    echo "bare: the server ended with status $?; its last words: $(tail -1 /tmp/server)" >&2
    wrong=1
  }
  for digest in "${digests[@]}"; do
    [[ $digest != none && $digest = "${digests[0]}" ]] || {
      echo "bare: the digests differ: ${digests[*]}" >&2
      wrong=1
    }
  done
  return $wrong
}
run_use() { caches first && clone first /root/use && inside first bash -c "$(declare -f used); cd /root/use && used \"\$@\"" use "${use[@]}"; }

# Of what it prints the RMSE of gradbus and PyTorch, from equal rows and batches, are equal but for rounding.
run_torch() {
  clone first /root/torch && caches first && inside first bash -c "cd /root/torch && ${quickstart[1]}" | tee "$work/said" || return
  awk '$1 == "gradbus" {ours = $3} $1 == "PyTorch" {theirs = $3}
    END {off = ours - theirs; exit !(ours > 0.5 && ours < 1 && off < 0.0002 && off > -0.0002)}' "$work/said" && return
  echo "bare: the RMSE of gradbus and PyTorch differ, or are none" >&2
  return 1
}

# A shallow clone that another user owns, in a folder with a space, files for nobody else, no HOME, no language; then no Go. That there
# is no terminal, all parts have in common.
run_odd() {
  local said
  clone first "/root/a b" --depth 1 && caches first && inside first chown -R 1000:1000 "/root/a b" &&
    inside first bash -c "cd '/root/a b' && unset HOME LANG && umask 077 && ${quickstart[0]}" || return
  if said=$(inside first bash -c 'cd "/root/a b" && PATH=/usr/sbin:/usr/bin:/sbin:/bin make -s' 2>&1); then
    echo "bare: make without Go ended with status 0" >&2
    return 1
  fi
  printf '%s\n' "$said"
  [ "$(grep -c '^deps: this machine has no go .*wants Go 1\.[0-9]* or newer' <<<"$said")" = 1 ] && [ "$(wc -l <<<"$said")" -le 2 ]
}

run_test() {
  clone tested /root/test && caches tested && inside tested bash -c "cd /root/test && ${quickstart[-1]}"
}

failed=()
for part in demo use torch odd test; do
  # use and odd stand on what demo has installed.
  [[ $parts = *" $part "* || ( $part = demo && $parts =~ \ (use|odd)\  ) ]] || continue
  from=$SECONDS
  printf '\n== bare %s: %s\n' "$suite" "$part"
  if "run_$part"; then
    printf '== bare %s: %s: ok, %d s\n' "$suite" "$part" $((SECONDS - from))
  else
    printf '== bare %s: %s: FAILED after %d s\n' "$suite" "$part" $((SECONDS - from)) >&2
    failed+=("$part")
  fi
done
[ ${#failed[@]} -eq 0 ] || fail "failed in $suite: ${failed[*]}"
