#!/bin/sh
# Builds the examples and the programs of tests/ against what ../build.sh laid out below PREFIX, into OUT: with the
# strictest warnings, as C99, C11 and C++17, with both libraries, and under the sanitizers; compiles the headers alone;
# and compares what libsidecar.so exports with symbols.txt. Needs gcc, g++, nm, readelf and pkg-config; asks clang, too,
# where it is.
#     examples/build.sh PREFIX OUT
set -eu

[ $# -eq 2 ] || { echo "usage: build.sh PREFIX OUT" >&2; exit 1; }
mkdir -p "$2"
prefix="$(cd "$1" && pwd)"
out="$(cd "$2" && pwd)"
cd "$(dirname "$0")/.."
export PKG_CONFIG_PATH="$prefix/lib/pkgconfig"

nm -D --defined-only "$prefix/lib/libsidecar.so" | awk '{ print $3 }' | LC_ALL=C sort > "$out/exported"
diff symbols.txt "$out/exported" >&2 || { echo "build.sh: the exported symbols are not those of symbols.txt" >&2; exit 1; }
major="$(sed -n 's/^#define sidecar_ABI_MAJOR \([0-9]*\)/\1/p' include/sidecar.h)"
readelf -d "$prefix/lib/libsidecar.so" | grep -q "SONAME.*libsidecar\.so\.$major\]" \
    || { echo "build.sh: the library's name is not libsidecar.so.$major" >&2; exit 1; }

strict="-Wall -Wextra -Werror -pedantic -g -O1"
sanitized="-fsanitize=address,undefined -fno-sanitize-recover=all -fno-omit-frame-pointer"
cflags="$(pkg-config --cflags sidecar)"
shared="$(pkg-config --libs sidecar) -Wl,-rpath,$prefix/lib"
# With --static it is the same -lsidecar, which would find the shared one first.
static="$prefix/lib/libsidecar.a $(pkg-config --libs-only-l --static sidecar | sed 's/-lsidecar//')"

# The lists are words on purpose.
# shellcheck disable=SC2086
build() { echo "$*"; "$@"; }
# The headers need nothing before them, in every version of either language from the one that is asked for.
alone() {
    echo "$*"
    printf '#include "%s"\nint main(void) { return 0; }\n' "$1" > "$out/alone.c"
    shift
    "$@" $strict $cflags -fsyntax-only "$out/alone.c"
}
for standard in c99 c11 c17; do
    alone sidecar.h gcc -std=$standard
done
for standard in c++11 c++17 c++20; do
    alone sidecar.h g++ -x c++ -std=$standard
done
for standard in c++17 c++20; do
    alone sidecar.hpp g++ -x c++ -std=$standard -Wconversion -Wsign-conversion -Wshadow -Wold-style-cast
done
for standard in c99 c11; do
    for program in worker direct_agent; do
        build gcc -std=$standard $strict $cflags "examples/$program.c" -o "$out/$program-$standard" $static
    done
    build gcc -std=$standard $strict $cflags tests/abi.c -o "$out/abi-$standard" $shared
done
build gcc -std=c99 $strict $cflags tests/misuse.c -o "$out/misuse-c99" $shared
build gcc -std=c11 $strict $cflags tests/slow_worker.c -o "$out/slow_worker-c11" $static
for program in worker serve; do
    build g++ -std=c++17 $strict $cflags "examples/$program.cpp" -o "$out/$program-c++17" $shared
    build g++ -std=c++17 $strict $sanitized $cflags "examples/$program.cpp" -o "$out/$program-c++17-sanitized" $static
done
for program in failing batch; do
    build g++ -std=c++17 $strict $sanitized $cflags "tests/$program.cpp" -o "$out/$program-sanitized" $static
done
build g++ -std=c++17 $strict $cflags -x c++ tests/abi.c -x none -o "$out/abi-c++17" $static
build gcc -std=c11 $strict $sanitized $cflags examples/worker.c -o "$out/worker-sanitized" $static
build gcc -std=c11 $strict $sanitized $cflags examples/direct_agent.c -o "$out/direct_agent-sanitized" $static
build gcc -std=c11 $strict $sanitized $cflags tests/misuse.c -o "$out/misuse-sanitized" $static
build gcc -std=c11 $strict $sanitized $cflags tests/abi.c -o "$out/abi-sanitized" $static
if command -v clang > /dev/null; then
    for program in examples/worker.c examples/direct_agent.c tests/abi.c tests/misuse.c tests/slow_worker.c; do
        build clang -std=c11 $strict -Wconversion -Wshadow $cflags -fsyntax-only "$program"
    done
    for program in examples/worker.cpp examples/serve.cpp tests/failing.cpp tests/batch.cpp; do
        build clang++ -std=c++17 $strict -Wconversion -Wshadow $cflags -fsyntax-only "$program"
    done
else
    echo "skipped: clang is not installed"
fi
for program in abi-c99 abi-c11 abi-c++17 abi-sanitized; do
    build "$out/$program"
done
