# Paths and functions shared by the scripts in this folder. Sourced, never run.
# shellcheck shell=bash

# Root of the repository.
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)

# Tools that are built or downloaded once and can be thrown away at any time.
case "$(uname -s)" in
  Darwin) cache="${XDG_CACHE_HOME:-$HOME/Library/Caches}/hunch" ;;
  *) cache="${XDG_CACHE_HOME:-$HOME/.cache}/hunch" ;;
esac

# The user's data folder, as the app itself chooses it.
if [ -n "${HUNCH_DATA_DIR:-}" ]; then
  data=$HUNCH_DATA_DIR
elif [ "$(uname -s)" = Darwin ]; then
  data="$HOME/Library/Application Support/hunch"
else
  data="${XDG_DATA_HOME:-$HOME/.local/share}/hunch"
fi

say() { printf '%s\n' "$*"; }

die() {
  printf '\n%s\n' "$*" >&2
  exit 1
}

is_mac() { [ "$(uname -s)" = Darwin ]; }

# Succeeds if a window can open here.
has_display() { is_mac || [ -n "${DISPLAY:-}" ] || [ -n "${WAYLAND_DISPLAY:-}" ]; }

# Succeeds if version $1 is at least $2, both as 1.2.3.
at_least() { [ "$(printf '%s\n%s\n' "$2" "$1" | sort -V | head -n 1)" = "$2" ]; }

sha256_of() {
  if command -v sha256sum >/dev/null; then sha256sum "$1"; else shasum -a 256 "$1"; fi | cut -d ' ' -f 1
}

need_python() {
  command -v python3 >/dev/null || die "Python 3 is missing. Install it (Debian: apt-get install python3 python3-pip, macOS: xcode-select --install) and run the same command again."
}

# The pip command of this machine, as words.
pip_words() {
  need_python
  if python3 -m pip --version >/dev/null 2>&1; then
    echo "python3 -m pip"
  elif command -v pip3 >/dev/null; then
    echo "pip3"
  else
    die "pip is missing. Install it (Debian: apt-get install python3-pip, elsewhere: python3 -m ensurepip --user) and run the same command again."
  fi
}

# Downloads one wheel ($1, as name==version, for this machine) and unpacks it into folder $2.
unpack_wheel() {
  local pip wheel download
  pip=$(pip_words)
  download=$(mktemp -d)
  # shellcheck disable=SC2086  # pip_words gives words.
  if ! $pip download --quiet --disable-pip-version-check --no-deps --dest "$download" "$1"; then
    rm -rf "$download"
    die "$1 could not be downloaded from the Python package index. Check the connection and run the same command again."
  fi
  wheel=$(find "$download" -name '*.whl' | head -n 1)
  [ -n "$wheel" ] || { rm -rf "$download"; die "$1 came without a wheel for this machine."; }
  mkdir -p "$2"
  python3 -m zipfile -e "$wheel" "$2"
  rm -rf "$download"
}

# Builds the WebDriver of the app's web view on first use, and sets what it and the app need on a bare machine.
need_driver() {
  local version=2.1.0
  local tools="$cache/tauri-driver-$version"
  if [ ! -x "$tools/bin/tauri-driver" ]; then
    say "Building tauri-driver $version"
    # A target folder of its own: its crates are not those of the workspace.
    CARGO_TARGET_DIR="$tools/target" cargo install --quiet --locked --root "$tools" --version "$version" tauri-driver
    rm -rf "$tools/target"
  fi
  export HUNCH_E2E_DRIVER="$tools/bin/tauri-driver"
  # Web rendering without a graphics card, and no search for assistive technology.
  export WEBKIT_DISABLE_COMPOSITING_MODE=1 NO_AT_BRIDGE=1 LIBGL_ALWAYS_SOFTWARE=1
  unset WAYLAND_DISPLAY
}

# Fetches Zig, from a Python package, unless it is in the cache, and sets $zig to its folder.
fetch_zig() {
  local version=0.17.0
  zig="$cache/zig-$version"
  if [ ! -f "$zig/ready" ]; then
    say "Fetching Zig $version"
    rm -rf "$zig"
    unpack_wheel "ziglang==$version" "$zig"
    chmod +x "$zig/ziglang/zig"
    touch "$zig/ready"
  fi
}

# Version of llama-cpp-python, whose source carries llama.cpp.
llama_version=0.3.36

# Builds TARGET of llama.cpp on first use: need_llama_cpp TARGET [CMAKE_FLAG...]. Sets $llama_source and $llama_build. Both
# can be deleted at any time.
need_llama_cpp() {
  local folder="$cache/llama.cpp-$llama_version" target=$1
  shift
  llama_source="$folder/source/vendor/llama.cpp" llama_build="$folder/build-$target"
  [ ! -f "$llama_build/ready" ] || return 0
  need_python
  say "Building $target of llama.cpp, some minutes"
  if [ ! -f "$folder/ready" ]; then
    rm -rf "$folder"
    python3 -m venv "$folder"
    "$folder/bin/pip" install --quiet --disable-pip-version-check scikit-build-core cmake ninja
    mkdir "$folder/source"
    "$folder/bin/pip" download --quiet --no-deps --no-build-isolation --no-binary llama-cpp-python \
      --dest "$folder/source" "llama-cpp-python==$llama_version"
    tar -xzf "$folder"/source/*.tar.gz -C "$folder/source" --strip-components 1
    touch "$folder/ready"
  fi
  "$folder/bin/cmake" -G Ninja -DCMAKE_MAKE_PROGRAM="$folder/bin/ninja" -DCMAKE_BUILD_TYPE=Release \
    -DBUILD_SHARED_LIBS=OFF -DLLAMA_BUILD_TESTS=OFF -DLLAMA_BUILD_SERVER=OFF -DLLAMA_BUILD_UI=OFF -DLLAMA_OPENSSL=OFF \
    "$@" -S "$llama_source" -B "$llama_build" >/dev/null
  "$folder/bin/cmake" --build "$llama_build" --target "$target" >/dev/null
  touch "$llama_build/ready"
}

# Builds llama-server on first use, unless LLAMA_SERVER names one, and sets $llama_server to it.
need_llama_server() {
  llama_server=${LLAMA_SERVER:-}
  [ -z "$llama_server" ] || return 0
  need_llama_cpp llama-server -DLLAMA_BUILD_SERVER=ON -DGGML_METAL=OFF
  llama_server="$llama_build/bin/llama-server"
}
