#!/usr/bin/env bash
# lint.sh: gofmt, go vet and staticcheck with every combination of build tags that make uses, clang-format, Python's syntax and the
# types of python/gradbus by mypy --strict. Prints what is wrong and ends with 1 where anything is.
set -uo pipefail
cd "$(dirname "$0")/.."
status=0
export GOFLAGS="${GOFLAGS:-} -trimpath -buildmode=pie" # as make compiles what it looks at

step() {
  echo "lint: $*"
  "$@" || status=1
}

unformatted=$(gofmt -l $(git ls-files --cached --others --exclude-standard '*.go'))
if [ -n "$unformatted" ]; then
  printf 'lint: run gofmt -w on:\n%s\n' "$unformatted"
  status=1
fi
for tags in "" native native,emu; do
  step go vet -tags "$tags" ./...
  step go tool staticcheck -tags "$tags" ./...
done
step env CGO_CFLAGS="-g -O2 -Werror" go build -tags native ./cuda
mapfile -t native < <(git ls-files --cached --others --exclude-standard '*.h' '*.cc' '*.cpp' '*.cu' '*.cuh')
if [ ${#native[@]} -gt 0 ]; then
  echo "lint: clang-format --dry-run -Werror on ${#native[@]} files"
  clang-format --dry-run -Werror "${native[@]}" || status=1
fi
mapfile -t python < <(git ls-files --cached --others --exclude-standard '*.py')
echo "lint: the syntax of ${#python[@]} files of Python"
python3 -c 'import ast, sys; [ast.parse(open(f, encoding="utf-8").read(), f) for f in sys.argv[1:]]' "${python[@]}" || status=1
# As in python/pyproject.toml, of whose folder mypy takes its settings.
step env -C python mypy --cache-dir ../build/mypy
[ $status = 0 ] && echo "lint: ok"
exit $status
