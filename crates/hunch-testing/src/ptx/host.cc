// An NVIDIA GPU as a process: holds buffers, loads PTX, runs kernels. Reads the commands of simulator/host.cc, and
// answers in the same way. The CUDA driver is loaded when the process starts, so that compiling needs no CUDA.
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

namespace {
typedef int Result;
typedef unsigned long long Address;
typedef void* Handle;

Result (*init)(unsigned);
Result (*device_get)(int*, int);
Result (*context_create)(Handle*, unsigned, int);
Result (*allocate)(Address*, size_t);
Result (*release)(Address);
Result (*fill)(Address, unsigned char, size_t);
Result (*to_device)(Address, const void*, size_t);
Result (*to_host)(void*, Address, size_t);
Result (*load_module)(Handle*, const void*, unsigned, int*, void**);
Result (*get_function)(Handle*, Handle, const char*);
Result (*get_global)(Address*, size_t*, Handle, const char*);
Result (*launch)(Handle, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, Handle, void**, void**);
Result (*synchronise)();
Result (*error_name)(Result, const char**);

// Registers of a thread, so that the largest threadgroup, 1024 threads, fits into the 65,536 of a multiprocessor. Metal
// limits them by a kernel's largest threadgroup, which is not in the PTX.
const size_t MAX_REGISTERS = 64;
int JIT_MAX_REGISTERS = 0;
const uint32_t MAX_BUFFERS = 1 << 16, MAX_LIBRARIES = 1 << 12, MAX_ARGUMENTS = 31;
struct Buffer { Address address; size_t bytes; };
Buffer buffers[MAX_BUFFERS];
Handle libraries[MAX_LIBRARIES];
uint32_t buffer_count, library_count;

[[noreturn]] void stop(const char* reason) { fprintf(stderr, "cuda: %s\n", reason); exit(2); }
void check(Result result) {
  const char* name = "an error";
  if (!result) return;
  error_name(result, &name);
  stop(name);
}
template<class F> void find(void* driver, F& function, const char* name) {
  function = (F)dlsym(driver, name);
  if (!function) stop(name);
}
Buffer& buffer(uint32_t id, uint64_t offset, uint64_t bytes) {
  if (id >= buffer_count || !buffers[id].address) stop("a buffer that does not exist");
  if (offset > buffers[id].bytes || bytes > buffers[id].bytes - offset) stop("a range outside of its buffer");
  return buffers[id];
}
uint32_t new_buffer(uint64_t bytes) {
  uint32_t id = 0;
  while (id < buffer_count && buffers[id].address) ++id;
  if (id == MAX_BUFFERS) stop("too many buffers");
  if (id == buffer_count) ++buffer_count;
  check(allocate(&buffers[id].address, bytes));
  buffers[id].bytes = bytes;
  // New memory holds anything.
  check(fill(buffers[id].address, 0xff, bytes));
  return id;
}
void transfer(bool write) {
  uint32_t id = take<uint32_t>();
  uint64_t offset = take<uint64_t>(), bytes = take<uint64_t>();
  Address address = buffer(id, offset, bytes).address + offset;
  void* copy = malloc(bytes + 1);
  if (write) {
    take(copy, bytes);
    check(to_device(address, copy, bytes));
  } else {
    check(to_host(copy, address, bytes));
    give(copy, bytes);
    fflush(stdout);
  }
  free(copy);
}
void load() {
  char path[4096];
  uint32_t length = take<uint32_t>();
  if (length >= sizeof path || library_count == MAX_LIBRARIES) stop("too much for one process");
  take(path, length);
  path[length] = 0;
  FILE* file = fopen(path, "rb");
  if (!file) return answer("the PTX cannot be read");
  fseek(file, 0, SEEK_END);
  size_t size = ftell(file);
  rewind(file);
  char* text = (char*)calloc(size + 1, 1);
  bool whole = fread(text, 1, size, file) == size;
  fclose(file);
  void* registers = (void*)MAX_REGISTERS;
  Result result = whole ? load_module(&libraries[library_count], text, 1, &JIT_MAX_REGISTERS, &registers) : 1;
  free(text);
  if (result) return answer("the driver refuses the PTX");
  answer(0);
  ++library_count;
}
void dispatch() {
  uint32_t library = take<uint32_t>(), length = take<uint32_t>();
  char kernel[256] = "hunch_";
  if (library >= library_count || length + 7 > sizeof kernel) stop("a kernel that does not exist");
  take(kernel + 6, length);
  Address pointers[MAX_ARGUMENTS];
  void* arguments[MAX_ARGUMENTS];
  unsigned char constants[4096];
  uint32_t count = take<uint32_t>(), used = 0, bytes = 0;
  if (count > MAX_ARGUMENTS) stop("a kernel has at most 31 buffers");
  for (uint32_t i = 0; i < count; ++i) {
    if (take<uint32_t>()) {
      bytes = take<uint32_t>();
      if (bytes > sizeof constants) stop("constants have at most 4096 bytes");
      take(constants, bytes);
    } else {
      uint32_t id = take<uint32_t>();
      uint64_t offset = take<uint64_t>();
      pointers[used] = buffer(id, offset, 0).address + offset;
      arguments[used] = &pointers[used];
      ++used;
    }
  }
  uint32_t groups[3], threads[3];
  take(groups, sizeof groups);
  take(threads, sizeof threads);
  unsigned scratch = (unsigned)take<uint64_t>();
  // The GPU has a schedule of its own.
  take<uint64_t>();
  take<uint32_t>();
  take<uint32_t>();
  Handle function;
  check(get_function(&function, libraries[library], kernel));
  if (bytes) {
    Address symbol;
    size_t size;
    check(get_global(&symbol, &size, libraries[library], "hunch_constants"));
    check(to_device(symbol, constants, bytes));
  }
  check(launch(function, groups[0], groups[1], groups[2], threads[0], threads[1], threads[2], scratch, 0, arguments, 0));
  check(synchronise());
  answer(0);
}
}  // namespace

int main() {
  void* driver = dlopen("libcuda.so.1", RTLD_NOW);
  if (!driver) stop("libcuda.so.1 is missing");
  find(driver, error_name, "cuGetErrorName");
  find(driver, init, "cuInit");
  find(driver, device_get, "cuDeviceGet");
  find(driver, context_create, "cuCtxCreate_v2");
  find(driver, allocate, "cuMemAlloc_v2");
  find(driver, release, "cuMemFree_v2");
  find(driver, fill, "cuMemsetD8_v2");
  find(driver, to_device, "cuMemcpyHtoD_v2");
  find(driver, to_host, "cuMemcpyDtoH_v2");
  find(driver, load_module, "cuModuleLoadDataEx");
  find(driver, get_function, "cuModuleGetFunction");
  find(driver, get_global, "cuModuleGetGlobal_v2");
  find(driver, launch, "cuLaunchKernel");
  find(driver, synchronise, "cuCtxSynchronize");
  int device;
  Handle context;
  check(init(0));
  check(device_get(&device, 0));
  check(context_create(&context, 0, device));
  for (;;) {
    uint8_t command = take<uint8_t>();
    switch (command) {
      case 'L': load(); break;
      case 'D': dispatch(); break;
      case 'W': transfer(true); break;
      case 'R': transfer(false); break;
      case 'A': {
        uint32_t id = new_buffer(take<uint64_t>());
        give(&id, sizeof id);
        fflush(stdout);
        break;
      }
      case 'F': {
        Buffer& freed = buffer(take<uint32_t>(), 0, 0);
        check(release(freed.address));
        freed.address = 0;
        break;
      }
      default: stop("an unknown command");
    }
  }
}
