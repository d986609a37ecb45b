#!/bin/sh
# Proves that sidecar-core needs neither std nor an allocator. Needs cargo, cc and nm; ends with
# "1 passed, 0 failed", or says what is wrong and exits with 1.
set -eu

cd "$(dirname "$0")"
target="${CARGO_TARGET_DIR:-$PWD/target}"
library="$target/release/libno_alloc_proof.a"
work="$(mktemp -d)"
trap 'rm -rf "$work"' EXIT

fail() {
    echo "no-alloc-proof: $1" >&2
    echo "0 passed, 1 failed"
    exit 1
}

# Every public function is called, so that generic ones are looked at, too.
find ../src -name '*.rs' ! -name 'tests.rs' ! -path '*/tests/*' \
    -exec grep -hoE '^ *pub (const )?fn [a-z_0-9]+' {} + | awk '{ print $NF }' | sort -u > "$work/functions"
[ -s "$work/functions" ] || fail "found no public function in ../src"
while read -r function; do
    grep -rqE "\b$function\(" src || fail "the public function $function is not called"
done < "$work/functions"

cargo build --release --locked --quiet || fail "the static library does not build"

# Neither Rust's allocator shims nor C's functions, defined or wanted, in any object of the library.
allocators='__rust_(re|de)?alloc|__rust_alloc_zeroed|__rust_no_alloc_shim|__rdl_|__rg_|__rust_alloc_error'
allocators="$allocators|(^|[ _])(malloc|calloc|realloc|reallocarray|free|posix_memalign|aligned_alloc|memalign)\$"
allocators="$allocators|[^a-z_](alloc|std)::"
nm "$library" > "$work/symbols" 2>/dev/null || fail "nm cannot read $library"
nm -C "$library" >> "$work/symbols" 2>/dev/null
grep -q ' T sidecar_no_alloc_proof$' "$work/symbols" || fail "the library does not hold the proof"
if grep -E "$allocators" "$work/symbols" > "$work/found"; then
    sort -u "$work/found" >&2
    fail "the library names an allocator"
fi

# A program of it wants the C library's start and memory functions and nothing else, and runs.
cc -Wall -Wextra -Werror -O1 main.c "$library" -nodefaultlibs -lc -Wl,--gc-sections -o "$work/program" \
    || fail "the library does not link without Rust's runtime"
known='__libc_start_main|__cxa_finalize|__gmon_start__|_ITM_(de)?registerTMCloneTable|abort|write'
known="$known|memcpy|memmove|memset|memcmp|bcmp|strlen"
if nm -u "$work/program" | awk '{ print $NF }' | sed 's/@.*//' | grep -vxE "$known" > "$work/found"; then
    cat "$work/found" >&2
    fail "the program wants more of the C library than it may"
fi
"$work/program" || fail "the program exits with $?"

echo "1 passed, 0 failed"
