#!/usr/bin/env bash
# dist_check.sh FOLDER   checks that an unpacked archive of dist.sh has every file that its deploy/ names, and no other file there
set -euo pipefail
cd "$1"
status=0
report() {
  echo "dist_check: $*" >&2
  status=1
}
# What the top of the unit installs, and the program that it starts, by the name that this gives it.
while read -r from to; do
  [ -e "$from" ] || report "deploy/gradbus.service: no $from"
  installed="${installed:-} $to"
done < <(sed -n 's/^#   install -[^/]* \([^ ]*\) \(\/[^ ]*\).*/\1 \2/p' deploy/gradbus.service)
program=$(sed -n 's/^ExecStart=\([^ ]*\).*/\1/p' deploy/gradbus.service)
[[ " ${installed:-} " == *" $program "* ]] || report "deploy/gradbus.service: nothing installs $program"
# Links of its page, rules of Prometheus, and all files, which the page has by name or by folder.
while read -r link; do [ -e "deploy/$link" ] || report "deploy/README.md: no $link"; done < <(grep -o '](\.\./[^)#]*' deploy/README.md | cut -c3-)
while read -r rules; do [ -e "deploy/prometheus/$rules" ] || report "prometheus.yml: no $rules"; done < <(sed -n '/^rule_files/,/^[^ -]/s/^ *- *//p' deploy/prometheus/prometheus.yml)
while read -r file; do
  grep -qE "\`(${file#deploy/}|$(basename "$(dirname "$file")")/)\`" deploy/README.md || report "deploy/README.md: nothing of $file"
done < <(find deploy -type f ! -name README.md)
exit $status
