#!/bin/sh
# Proves that libsidecar_agent.a needs neither std nor an allocator, and that examples/direct_agent.c, linked with it,
# does not either. Needs cargo, cc and nm; ends with "1 passed, 0 failed", or says what is wrong and exits with 1.
# The program stays in $1 if that is given.
set -eu

cd "$(dirname "$0")"
target="${CARGO_TARGET_DIR:-$PWD/target}"
library="$target/release/libsidecar_agent.a"
work="$(mktemp -d)"
trap 'rm -rf "$work"' EXIT
program="${1:-$work/direct_agent}"

fail() {
    echo "freestanding: $1" >&2
    echo "0 passed, 1 failed"
    exit 1
}

cargo build --release --locked --quiet || fail "the static library does not build"

# Neither Rust's allocator shims nor C's functions, defined or wanted, in any object of the library.
allocators='__rust_(re|de)?alloc|__rust_alloc_zeroed|__rust_no_alloc_shim|__rdl_|__rg_|__rust_alloc_error'
allocators="$allocators|(^|[ _])(malloc|calloc|realloc|reallocarray|free|posix_memalign|aligned_alloc|memalign)\$"
allocators="$allocators|[^a-z_](alloc|std)::"
nm "$library" > "$work/symbols" 2>/dev/null || fail "nm cannot read $library"
nm -C "$library" >> "$work/symbols" 2>/dev/null
if grep -E "$allocators" "$work/symbols" > "$work/found"; then
    sort -u "$work/found" >&2
    fail "the library names an allocator"
fi

# It has each of the agent's functions that the list has, and none of the worker's.
awk '$2 == "T" && $3 ~ /^sidecar_[a-z_]+$/ { print $3 }' "$work/symbols" | LC_ALL=C sort -u > "$work/exported"
grep -vE '^sidecar_(worker|observation|reservation)_' ../symbols.txt > "$work/listed"
diff "$work/listed" "$work/exported" >&2 || fail "the library's functions are not those of symbols.txt"

# A whole client is linked without Rust's runtime, and wants the C library for sockets, time and memory alone.
cc -std=c11 -Wall -Wextra -Werror -pedantic -O2 -g -I../include ../examples/direct_agent.c "$library" \
    -nodefaultlibs -lc -Wl,--gc-sections -o "$program" || fail "the program does not link without Rust's runtime"
if nm -u "$program" | awk '{ print $NF }' | sed 's/@.*//' \
    | grep -xE '(malloc|calloc|realloc|reallocarray|free|posix_memalign|aligned_alloc|memalign|fopen|getaddrinfo)' \
    > "$work/found"; then
    cat "$work/found" >&2
    fail "the program wants an allocator"
fi

echo "1 passed, 0 failed"
