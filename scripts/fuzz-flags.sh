# Coverage counters for libFuzzer, as cargo-fuzz asks the compiler for them. Sourced, never run.
# shellcheck shell=bash disable=SC2034  # Used by who sources it.
coverage=(
  -Cpasses=sancov-module
  -Cllvm-args=-sanitizer-coverage-level=4
  -Cllvm-args=-sanitizer-coverage-inline-8bit-counters
  -Cllvm-args=-sanitizer-coverage-pc-table
  -Cllvm-args=-sanitizer-coverage-trace-compares
)
