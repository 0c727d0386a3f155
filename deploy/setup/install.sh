#!/usr/bin/env bash
# Installs the Debian 12 packages that Strata is built, run and tested with. Run as root, or with sudo at
# hand. Installing what is already there changes nothing.
set -euo pipefail

packages=(
  # Build: Bazel 4.2.3 with the rules it would otherwise download, and the compilers.
  bazel-bootstrap bazel-platforms bazel-rules-java bazel-rules-proto bazel-skylib
  g++ clang clang-format clang-tidy pkg-config git
  # Libraries.
  libgrpc++-dev protobuf-compiler protobuf-compiler-grpc libprotobuf-dev libabsl-dev liburing-dev
  libsqlite3-dev libyaml-cpp-dev nlohmann-json3-dev libcli11-dev libspdlog-dev libssl-dev libdnnl-dev
  libcpp-httplib-dev
  # Tests, benchmarks and the demo text.
  libgtest-dev libgmock-dev libbenchmark-dev libseccomp-dev python3 python3-grpcio python3-protobuf fio r-cran-janeaustenr
)

missing=()
for package in "${packages[@]}"; do
  dpkg-query -W -f '${db:Status-Status}' "$package" 2>/dev/null | grep -qx installed || missing+=("$package")
done
if [ ${#missing[@]} -eq 0 ]; then
  echo "setup: all ${#packages[@]} Debian packages are installed"
  exit 0
fi
echo "setup: installing ${missing[*]}"
sudo=""
if [ "$(id -u)" -ne 0 ]; then sudo=sudo; fi
export DEBIAN_FRONTEND=noninteractive
$sudo apt-get update -qq
$sudo apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null
