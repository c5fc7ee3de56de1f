#!/usr/bin/env bash
# deploy.sh   checks what deploy/ has, as far as that can be done without a container engine; run make first
#
# The unit is verified, and its exposure bounded. The steps of the image's second stage run in a minimal Debian root, without network but
# loopback: ps as process 1 and as the image's user, its HEALTHCHECK, and SIGTERM. Each service of the compose file
# is one that the image can start. Needs root, debootstrap, systemd and python3-yaml.
set -euo pipefail
cd "$(dirname "$0")/.."
fail() {
  echo "deploy: $*" >&2
  exit 1
}
for need in debootstrap systemd-analyze python3; do command -v $need >/dev/null || fail "there is no $need"; done
[ -x bin/ps ] || fail "no bin/ps: run make first"
work=$(mktemp -d)
trap 'rm -rf --one-file-system "$work"' EXIT
chmod 755 "$work"

sed "s,^ExecStart=[^ ]*,ExecStart=$PWD/bin/ps,; /^Documentation=man/d" deploy/gradbus.service >"$work/gradbus.service"
systemd-analyze verify --man=no "$work/gradbus.service"
systemd-analyze security --offline=true --no-pager --threshold=25 "$work/gradbus.service" | tail -n 1
timeout 20 bin/ps --config deploy/ps.yaml --listen 127.0.0.1:0 --http off --port-file "$work/url" >"$work/out" 2>&1 &
ps=$!
until [ -s "$work/url" ]; do kill -0 $ps 2>/dev/null || fail "ps.yaml: $(cat "$work/out")"; sleep 0.1; done
kill $ps && wait $ps || fail "ps ended with status $?"

python3 - <<'P' || fail "compose.yaml is not as it should be"
import yaml
c = yaml.safe_load(open("deploy/compose.yaml"))
assert set(c["services"]) == {"ps", "t0", "t1"}, c["services"].keys()
for name, s in c["services"].items():
    assert s["image"] == "gradbus" and s["read_only"] and s["cap_drop"] == ["ALL"] and set(s["secrets"]) <= set(c["secrets"]), name
    assert all(isinstance(word, str) for word in s["command"]), name
    assert set(v.split(":")[0] for v in s.get("volumes", [])) <= set(c["volumes"]), name
P

# The second stage.
# shellcheck disable=SC2016 # the words are apt's
mirror=$(apt-get indextargets --format '$(REPO_URI) $(LABEL) $(CREATED_BY)' | awk '$2 == "Debian" && $3 == "Packages" && !found++ {print $1}')
suite=$(sed -n 's/^ARG DEBIAN=\([a-z]*\)-.*/\1/p' deploy/Dockerfile)
root=$work/root
debootstrap --variant=minbase --include=ca-certificates "$suite" "$root" "$mirror" >"$work/log" 2>&1 || fail "no root: $(tail -n 3 "$work/log")"
cp /etc/resolv.conf "$root/etc/"
cp /etc/ssl/certs/ca-certificates.crt "$root/etc/ssl/certs/"
grep -lis '^Acquire' /etc/apt/apt.conf.d/* | xargs -r cp -t "$root/etc/apt/apt.conf.d/"
step=$(awk '/^FROM/ {stage++} stage == 2 && sub(/^RUN /, "")' deploy/Dockerfile)
chroot "$root" /usr/bin/env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin sh -c "$step" >"$work/log" 2>&1 || fail "RUN $step: $(tail -n 3 "$work/log")"
PREFIX=/usr/local DESTDIR=$root scripts/install.sh >/dev/null
rm -rf "$root/usr/local/lib" "$root/usr/local/include"
check=$(sed -n 's/^HEALTHCHECK .* CMD //p' deploy/Dockerfile)
cat >"$root/container" <<'S'
# container USER CHECK: ps as process 1 of its own namespaces; what this prints is looked at outside.
ip=$1 check=$2
rm -f /tmp/url
if [ $$ != 1 ]; then
  exec unshare --pid --fork --kill-child sh /container "$@"
fi
mount -t proc proc /proc
(
  n=0
  until [ -s /tmp/url ] || [ $n = 300 ]; do sleep 0.1; n=$((n + 1)); done
  setpriv --reuid "$ip" --regid "$ip" --clear-groups sh -c "$check" && echo healthy
  kill -TERM 1
) &
exec setpriv --reuid "$ip" --regid "$ip" --clear-groups env XDG_STATE_HOME=/var/lib gradbus-ps --port-file /tmp/url
S
status=0
said=$(unshare --net --mount sh -c 'ip link set lo up; exec chroot "$0" /usr/bin/env -i PATH=/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin \
  sh /container 4222 "$1"' "$root" "$check" 2>&1) || status=$?
grep -q '^healthy$' <<<"$said" && [ $status = 0 ] && [ ! -e "$root/tmp/url" ] || fail "as process 1: status $status: $said"
echo "deploy: ok"
