#!/usr/bin/env bash
# cuda_budget.sh [--write] [FILE.cu...]: what the compiler made of the CUDA kernels, against csrc/cuda/registers.txt
#
# Compiles every csrc/cuda/*.cu (or the named ones) for each architecture, warnings being errors, and fails where a kernel of
# ours spills, uses local memory, takes more registers than its line in the budget allows, has or misses 16-byte loads or
# stores otherwise than its kind of access asks, lost those that its line says it has, or has no line. With --write it writes the budget
# instead, or the lines of the named files, after the same checks for what needs no budget. No GPU is needed. Registers depend on the
# compiler: with another nvcc than the budget's, growth is told and does not fail. Kernels of the CUDA toolkit's own library (CUB)
# are not ours and not looked at.
#
# A line of the budget: registers for each architecture, then L and S where the kernel loads and stores 16 bytes at a time,
# then FILE:KERNEL.
set -euo pipefail
cd "$(dirname "$0")/.."
budget=csrc/cuda/registers.txt
archs=(75 80 90) # of the budget: those of the build that the oldest nvcc knows, too
looked=("${archs[0]}" "${archs[-1]}") # whose machine code is read: the oldest and the newest
# One kernel at least of each of these files, whose rows are of no access, loads and stores 16 bytes at a time.
wide=(average average_apply bag_max dense merge segments)
# So does every kernel of a wide access (kFloats, kVectors: Access 0 and 1), but these, which store no rows. One of single values
# (kSingles, Access 2) does neither, but for total_kernel, whose terms lie in the workspace.
reads='look_kernel|look_rows_kernel|first_nonfinite_kernel'

write=
if [ "${1:-}" = --write ]; then
  write=1
  shift
fi
nvcc=$(command -v nvcc || true)
[ -n "$nvcc" ] || nvcc=/usr/local/cuda/bin/nvcc
[ -x "$nvcc" ] || {
  echo "cuda_budget: there is no nvcc here; install it with scripts/deps.sh cuda" >&2
  exit 1
}
cuobjdump=$(command -v cuobjdump || echo "$(dirname "$nvcc")/cuobjdump")
version=$("$nvcc" --version | sed -n 's/.*release \([0-9.]*\),.*/\1/p')
host=()
case $version in
  11.*) host=(-ccbin "$(command -v g++-11 || command -v g++-10 || echo g++)") ;; # nvcc 11 refuses newer ones
esac
# The flags of the build, from the build, and CI's.
flags=$(sed -n '/^set(GRADBUS_CUDA_FLAGS/,/)/p' CMakeLists.txt | tr '\n' ' ' | sed 's/.*GRADBUS_CUDA_FLAGS//; s/)//')
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
files=("$@")
[ ${#files[@]} -gt 0 ] || files=(csrc/cuda/*.cu)

codes=()
for arch in "${archs[@]}"; do codes+=(-gencode "arch=compute_$arch,code=sm_$arch"); done

# compile FILE: its machine code for all architectures and what ptxas says of it.
compile() {
  local name
  name=$(basename "$1" .cu)
  # shellcheck disable=SC2086 # the flags are words
  if ! "$nvcc" -fatbin -std=c++17 -O3 -DNDEBUG "${host[@]}" $flags --Werror=all-warnings -Xcompiler=-Werror -Icsrc/include -Icsrc "${codes[@]}" -Xptxas -v \
    "$1" -o "$work/$name.fatbin" >"$work/$name.log" 2>&1; then
    grep -v '^ptxas info\|bytes stack frame' "$work/$name.log" | sed "s|^|$1: |" >&2
    return 1
  fi
}

# usage NAME: "architecture <tab> registers <tab> bytes of stack and spills <tab> function" for each entry and function.
usage() {
  awk -v OFS='\t' '
    /Compiling entry function/ { entry = $0; sub(/.*function ./, "", entry); sub(/. for .*/, "", entry)
                                 arch = $0; sub(/.* for .sm_/, "", arch); sub(/.$/, "", arch) }
    /Function properties for/  { of = $NF }
    /bytes stack frame/        { stack = $1 + $5 + $9; if (of != entry) print arch, 0, stack, of }
    /Used [0-9]+ registers/    { match($0, /Used [0-9]+/); print arch, substr($0, RSTART + 5, RLENGTH - 5), stack, entry }
  ' "$work/$1.log" | c++filt -p
}

# code NAME ARCH: "W <tab> function" for each 16-byte load (L), 16-byte store (S) and access to local memory (X).
code() {
  "$cuobjdump" -arch "sm_$2" -sass "$work/$1.fatbin" 2>/dev/null | awk -v OFS='\t' '
    /Function : /                               { of = $NF }
    / LDG\.E[A-Z0-9.]*\.128/ && !seen["L" of]++ { print "L", of }
    / STG\.E[A-Z0-9.]*\.128/ && !seen["S" of]++ { print "S", of }
    / (LDL|STL)[. ]/ && !seen["X" of]++         { print "X", of }
  ' | c++filt -p
}

# ours NAME: keeps lines whose last field is a kernel of ours, and shortens that to FILE:KERNEL.
ours() {
  awk -F '\t' -v OFS='\t' -v file="$1" '
    $NF ~ /gradbus::/ && $NF !~ /^(void )?(cub|thrust)/ {
      gsub(/gradbus::(cuda::)?|\(anonymous namespace\)::/, "", $NF); sub(/^void /, "", $NF)
      $NF = file ":" $NF; print
    }'
}

echo "cuda_budget: nvcc $version, ${#files[@]} files, sm_${archs[*]}"
failed=0
running=0
for f in "${files[@]}"; do # two at a time
  if [ $running -ge "$(nproc)" ]; then
    wait -n || failed=1
    running=$((running - 1))
  fi
  compile "$f" &
  running=$((running + 1))
done
while [ $running -gt 0 ]; do
  wait -n || failed=1
  running=$((running - 1))
done
[ $failed = 0 ] || {
  echo "cuda_budget: FAILED to compile" >&2
  exit 1
}

for f in "${files[@]}"; do
  name=$(basename "$f" .cu)
  usage "$name" | ours "$name" >>"$work/usage"
  # Disassembling CUB takes long, and kernels that lie beside it move nothing wide.
  ! grep -q '<cub/' "$f" || continue
  for arch in "${looked[@]}"; do code "$name" "$arch" | ours "$name" | sed "s/^/$arch\t/" >>"$work/code"; done
done
touch "$work/usage" "$work/code"

# The table of this build: "registers... <tab> wide <tab> kernel", and complaints about local memory.
awk -F '\t' -v archs="${archs[*]}" -v looked="${looked[*]}" -v complaints="$work/complaints" '
  BEGIN { n = split(archs, arch, " "); m = split(looked, look, " ") }
  NR == FNR {
    if ($3 > 0) print $4 ": " $3 " bytes of stack and spills for sm_" $1 > complaints
    if ($2 > 0) { registers[$1, $4] = $2; kernels[$4] }
    next
  }
  $2 == "X" { print $3 ": local memory in its code for sm_" $1 > complaints; next }
  { has[$2, $3]++ }
  END {
    for (k in kernels) {
      line = ""
      for (i = 1; i <= n; i++) line = line sprintf("%3d ", registers[arch[i], k])
      # A letter counts where every architecture looked at has it.
      print line (has["L", k] == m ? "L" : "-") (has["S", k] == m ? "S" : "-") " " k
    }
  }' "$work/usage" "$work/code" | LC_ALL=C sort -k7 >"$work/table"
touch "$work/complaints"
kernels=$(wc -l <"$work/table")
[ "$kernels" -gt 0 ] || {
  echo "cuda_budget: FAILED: found no kernel" >&2
  exit 1
}
for name in "${wide[@]}"; do
  [ $# -eq 0 ] && [ -e "csrc/cuda/$name.cu" ] || continue
  grep -q " LS $name:" "$work/table" ||
    echo "$name: no kernel of it loads and stores 16 bytes at a time" >>"$work/complaints"
done

awk -v reads="^($reads)<" '
  /\(Access\)[0-2]/ {
    match($0, /[-L][-S] [a-z_]+:/)
    has = substr($0, RSTART, 2)
    kernel = substr($0, RSTART + 3)
    of = substr(kernel, index(kernel, ":") + 1)
    want = /\(Access\)2/ ? (of ~ /^total_kernel</ ? has : "--") : (of ~ reads ? "L-" : "LS")
    if (has != want) print kernel ": 16-byte loads and stores are " has ", want " want
  }' "$work/table" >>"$work/complaints"

header="# Registers of each kernel for sm_${archs[*]}, then L and S: it loads and stores 16 bytes at a time.
# Written by scripts/cuda_budget.sh --write with nvcc $version."
if [ -n "$write" ]; then
  if [ $# -gt 0 ]; then
    [ "$(head -2 "$budget")" = "$header" ] || {
      echo "cuda_budget: $budget has other architectures or is of another nvcc: --write takes all files" >&2
      exit 2
    }
    names=$(basename -s .cu "$@" | paste -sd '|')
    grep -vE "^#| ($names):" "$budget" >>"$work/table"
    LC_ALL=C sort -k7 -o "$work/table" "$work/table"
  fi
  { echo "$header" && cat "$work/table"; } >"$work/budget"
  mv "$work/budget" "$budget"
  echo "cuda_budget: wrote $kernels kernels to $budget"
else
  made=$(sed -n 's/^# Written by .* with nvcc \([0-9.]*\)\.$/\1/p' "$budget" 2>/dev/null || true)
  [ -n "$made" ] || echo "no budget in $budget: write one with --write" >>"$work/complaints"
  [ -z "$made" ] || awk -v same="$([ "$made" = "$version" ] && echo 1)" -v all="$([ $# -eq 0 ] && echo 1)" -v complaints="$work/complaints" '
    function name() { k = $0; sub(/^ *([0-9]+ +)+[-LS]+ /, "", k); return k }
    /^#/ { next }
    NR == FNR { k = name(); line[k] = $0; next }
    {
      k = name()
      if (!(k in line)) { print k ": not in the budget: look at its registers and run --write" >> complaints; next }
      n = split(line[k], was, " ")
      seen[k]
      for (i = 1; $i ~ /^[0-9]+$/; i++) if ($i > was[i]) {
        text = k ": " $i " registers, the budget has " was[i] " (column " i ")"
        if (same) print text >> complaints; else print "cuda_budget: another nvcc: " text
      }
      for (j = 1; j <= 2; j++) if (substr(was[i], j, 1) != "-" && substr($i, j, 1) == "-")
        print k ": no 16-byte " (j == 1 ? "loads" : "stores") " any more" >> complaints
    }
    END { if (all) for (k in line) if (!(k in seen)) print k ": in the budget, but no such kernel: run --write" >> complaints }
  ' "$budget" "$work/table"
fi
if [ -s "$work/complaints" ]; then
  sed 's/^/cuda_budget: /' "$work/complaints" >&2
  echo "cuda_budget: FAILED: $(wc -l <"$work/complaints") complaints" >&2
  exit 1
fi
echo "cuda_budget: ok, $kernels kernels, no spills, no local memory, $SECONDS s"
