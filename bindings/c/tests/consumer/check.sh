#!/bin/sh
# Builds and runs the consumer's project by pkg-config and by CMake, and the examples' own, against a copy of PREFIX
# in another place: what ../../build.sh laid out can be moved as a whole. Needs a C compiler, make, pkg-config and cmake.
#     check.sh PREFIX OUT
set -eu

[ $# -eq 2 ] || { echo "usage: check.sh PREFIX OUT" >&2; exit 1; }
mkdir -p "$2"
out="$(cd "$2" && pwd)"
rm -rf "$out/moved" "$out/make" "$out/cmake" "$out/newer" "$out/examples"
cp -a "$1" "$out/moved"
cd "$(dirname "$0")"

# Nothing of this machine's own may be found instead.
export PKG_CONFIG_LIBDIR="$out/moved/lib/pkgconfig"
for target in all static; do
    mkdir -p "$out/make/$target"
    cp consumer.c Makefile "$out/make/$target"
    make --silent -C "$out/make/$target" "$target"
    "$out/make/$target/consumer"
done
if readelf -d "$out/make/static/consumer" | grep -q libsidecar; then
    echo "check.sh: the static consumer wants the shared library" >&2
    exit 1
fi

cmake -S . -B "$out/cmake" -DCMAKE_PREFIX_PATH="$out/moved" > /dev/null
cmake --build "$out/cmake" > /dev/null
for target in sidecar static agent; do
    "$out/cmake/consumer_$target"
done
# Before 1.0 another minor version is another library.
mkdir -p "$out/newer"
sed 's/find_package(sidecar [0-9.]* /find_package(sidecar 0.99 /' CMakeLists.txt > "$out/newer/CMakeLists.txt"
cp consumer.c "$out/newer"
if cmake -S "$out/newer" -B "$out/newer/build" -DCMAKE_PREFIX_PATH="$out/moved" > /dev/null 2>&1; then
    echo "check.sh: version 0.99 was asked for, and CMake was content with what there is" >&2
    exit 1
fi
cmake -S ../../examples -B "$out/examples" -DCMAKE_PREFIX_PATH="$out/moved" > /dev/null
cmake --build "$out/examples" > /dev/null
