#!/bin/sh
# Builds libsidecar.a, libsidecar.so and libsidecar_agent.a, and lays them out below PREFIX with the headers, the
# pkg-config file and the CMake config. What is there can be moved as a whole. Needs cargo.
#     ./build.sh PREFIX
set -eu

[ $# -eq 1 ] || { echo "usage: build.sh PREFIX" >&2; exit 1; }
here="$(cd "$(dirname "$0")" && pwd)"
mkdir -p "$1"
prefix="$(cd "$1" && pwd)"
cd "$here/../.."
target="${CARGO_TARGET_DIR:-$PWD/target}"

version="$(sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml | head -n 1)"
major="$(sed -n 's/^#define sidecar_ABI_MAJOR \([0-9]*\)/\1/p' bindings/c/include/sidecar.h)"
[ -n "$version" ] && [ -n "$major" ] || { echo "build.sh: no version found" >&2; exit 1; }

rustc() { cargo rustc --release --quiet --package sidecar-c --lib "$@"; }
rustc --crate-type staticlib
rustc --crate-type cdylib -- -C link-arg="-Wl,-soname,libsidecar.so.$major"
(cd bindings/c/freestanding && CARGO_TARGET_DIR="$target/freestanding" cargo build --release --quiet --locked)

lib="$prefix/lib"
mkdir -p "$prefix/include" "$lib/pkgconfig" "$lib/cmake/sidecar"
cp bindings/c/include/sidecar.h bindings/c/include/sidecar.hpp "$prefix/include/"
cp "$target/release/libsidecar_c.a" "$lib/libsidecar.a"
cp "$target/release/libsidecar_c.so" "$lib/libsidecar.so.$major"
ln -sf "libsidecar.so.$major" "$lib/libsidecar.so"
cp "$target/freestanding/release/libsidecar_agent.a" "$lib/"
fill() { sed "s/@VERSION@/$version/; s/@SERIES@/${version%.*}/; s/@ABI_MAJOR@/$major/" "bindings/c/packaging/$1" > "$2"; }
fill sidecar.pc.in "$lib/pkgconfig/sidecar.pc"
fill sidecarConfig.cmake "$lib/cmake/sidecar/sidecarConfig.cmake"
fill sidecarConfigVersion.cmake "$lib/cmake/sidecar/sidecarConfigVersion.cmake"
echo "$prefix"
