// How a host process reads commands and writes answers. Stands before simulator/host.cc and ptx/host.cc when they
// are compiled. The other side is in gpu.rs.
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

namespace {
void take(void* to, size_t bytes) {
  if (bytes && fread(to, 1, bytes, stdin) != bytes) exit(0);
}
template<class T> T take() { T value; take(&value, sizeof value); return value; }
void give(const void* from, size_t bytes) {
  if (bytes && fwrite(from, 1, bytes, stdout) != bytes) exit(0);
}
void answer(const char* failure) {
  uint32_t length = failure ? (uint32_t)strlen(failure) : 0;
  give(&length, sizeof length);
  give(failure, length);
  fflush(stdout);
}
}  // namespace

