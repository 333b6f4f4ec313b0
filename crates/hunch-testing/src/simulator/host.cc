// The simulated GPU as a process: holds buffers, loads libraries, runs kernels. Reads commands from its standard
// input and answers on its standard output (gpu.rs writes the other side).
//
// A buffer ends where a page ends, and the page after it cannot be touched. So a kernel that leaves a buffer at
// its end is stopped, and the process says which kernel it was.
#include <dlfcn.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

namespace {
struct Traffic { unsigned char* start; uint64_t bytes, moved[2], distinct[2]; unsigned char* seen; };  // as in runtime.h
struct Launch {  // as in runtime.h
  void* const* buffers;
  uint32_t groups[3], threads[3];
  unsigned char* scratch;
  uint64_t scratch_bytes, seed;
  uint32_t order, mapping, counted;
  Traffic* traffic;
};
typedef const char* (*Run)(const char* kernel, const Launch*, void* (*allocate)(size_t));

const uint32_t MAX_BUFFERS = 1 << 16, MAX_LIBRARIES = 1 << 12, MAX_ARGUMENTS = 31, MAX_SCRATCH = 32768;
struct Buffer { unsigned char* start; size_t bytes; void* pages; size_t mapped; uint64_t moved[2], distinct[2]; };
Buffer buffers[MAX_BUFFERS];
Run libraries[MAX_LIBRARIES];
uint32_t buffer_count, library_count;
char kernel[256] = "no kernel";
// Loads and stores of buffers are counted, by kernels that were compiled for it.
bool counts_traffic;

void on_fault(int) {
  const char* parts[] = {"the kernel ", kernel, " left its buffers or its stack\n"};
  for (const char* part : parts) if (write(2, part, strlen(part)) < 0) break;
  _exit(3);
}
[[noreturn]] void stop(const char* reason) { fprintf(stderr, "simulator: %s\n", reason); exit(2); }

void* allocate_stacks(size_t bytes) {
  void* pages = mmap(0, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANON, -1, 0);
  if (pages == MAP_FAILED) stop("out of memory");
  return pages;
}
uint32_t new_buffer(uint64_t bytes) {
  uint32_t id = 0;
  while (id < buffer_count && buffers[id].pages) ++id;
  if (id == MAX_BUFFERS) stop("too many buffers");
  if (id == buffer_count) ++buffer_count;
  size_t page = sysconf(_SC_PAGESIZE), size = (bytes + 15) / 16 * 16, usable = (size + page - 1) / page * page;
  unsigned char* pages = (unsigned char*)mmap(0, usable + page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANON, -1, 0);
  if (pages == MAP_FAILED || mprotect(pages + usable, page, PROT_NONE)) stop("out of memory");
  buffers[id] = Buffer{pages + usable - size, (size_t)bytes, pages, usable + page, {0, 0}, {0, 0}};
  // New memory holds anything.
  memset(pages, 0xff, usable);
  return id;
}
Buffer& buffer(uint32_t id, uint64_t offset, uint64_t bytes) {
  if (id >= buffer_count || !buffers[id].pages) stop("a buffer that does not exist");
  if (offset > buffers[id].bytes || bytes > buffers[id].bytes - offset) stop("a range outside of its buffer");
  return buffers[id];
}

void load() {
  char path[4096];
  uint32_t length = take<uint32_t>();
  if (length >= sizeof path || library_count == MAX_LIBRARIES) stop("too much for one simulator");
  take(path, length);
  path[length] = 0;
  void* library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
  if (!library) return answer(dlerror());
  libraries[library_count] = (Run)dlsym(library, "sim_run");
  if (!libraries[library_count]) return answer(dlerror());
  answer(0);
  ++library_count;
}
void dispatch() {
  uint32_t library = take<uint32_t>(), length = take<uint32_t>();
  if (library >= library_count || length >= sizeof kernel) stop("a kernel that does not exist");
  take(kernel, length);
  kernel[length] = 0;
  static unsigned char constants[MAX_ARGUMENTS][4096] __attribute__((aligned(16)));
  static const uint32_t scratch_buffer = new_buffer(MAX_SCRATCH);
  unsigned char* scratch = buffers[scratch_buffer].start;
  void* arguments[MAX_ARGUMENTS] = {};
  Traffic traffic[MAX_ARGUMENTS];
  uint32_t counted[MAX_ARGUMENTS], counted_count = 0;
  uint32_t count = take<uint32_t>();
  if (count > MAX_ARGUMENTS) stop("a kernel has at most 31 buffers");
  for (uint32_t i = 0; i < count; ++i) {
    if (take<uint32_t>()) {
      uint32_t bytes = take<uint32_t>();
      if (bytes > sizeof constants[i]) stop("constants have at most 4096 bytes");
      take(constants[i], bytes);
      arguments[i] = constants[i];
    } else {
      uint32_t id = take<uint32_t>();
      uint64_t offset = take<uint64_t>();
      arguments[i] = buffer(id, offset, 0).start + offset;
      bool is_new = counts_traffic;
      for (uint32_t j = 0; j < counted_count; ++j) is_new = is_new && counted[j] != id;
      if (is_new) {
        Buffer& own = buffers[id];
        unsigned char* seen = (unsigned char*)calloc(own.bytes / 2 + 8, 1);
        traffic[counted_count] = Traffic{own.start, own.bytes, {0, 0}, {0, 0}, seen};
        if (!seen) stop("out of memory");
        counted[counted_count++] = id;
      }
    }
  }
  Launch launch = {};
  launch.buffers = arguments;
  launch.scratch = scratch;
  take(launch.groups, sizeof launch.groups);
  take(launch.threads, sizeof launch.threads);
  launch.scratch_bytes = take<uint64_t>();
  launch.seed = take<uint64_t>();
  launch.order = take<uint32_t>();
  launch.mapping = take<uint32_t>();
  // Threadgroup memory ends at the same guard as a buffer.
  if (launch.scratch_bytes <= MAX_SCRATCH) launch.scratch = scratch + (MAX_SCRATCH - launch.scratch_bytes) / 16 * 16;
  launch.counted = counted_count;
  launch.traffic = traffic;
  const char* failure = libraries[library](kernel, &launch, allocate_stacks);
  for (uint32_t i = 0; i < counted_count; ++i) {
    for (uint32_t j = 0; j < 2; ++j) {
      buffers[counted[i]].moved[j] += traffic[i].moved[j];
      buffers[counted[i]].distinct[j] += traffic[i].distinct[j];
    }
    free(traffic[i].seen);
  }
  answer(failure);
}
}  // namespace

int main() {
  static unsigned char stack[65536];
  stack_t other = {};
  other.ss_sp = stack;
  other.ss_size = sizeof stack;
  sigaltstack(&other, 0);
  struct sigaction action = {};
  action.sa_handler = on_fault;
  action.sa_flags = SA_ONSTACK;
  sigaction(SIGSEGV, &action, 0);
  sigaction(SIGBUS, &action, 0);
  static char in[1 << 16], out[1 << 16];
  setvbuf(stdin, in, _IOFBF, sizeof in);
  setvbuf(stdout, out, _IOFBF, sizeof out);
  for (;;) {
    switch (take<uint8_t>()) {
      case 'L': load(); break;
      case 'D': dispatch(); break;
      case 'A': {
        uint32_t id = new_buffer(take<uint64_t>());
        give(&id, sizeof id);
        fflush(stdout);
        break;
      }
      case 'F': {
        uint32_t id = take<uint32_t>();
        Buffer& freed = buffer(id, 0, 0);
        munmap(freed.pages, freed.mapped);
        freed.pages = 0;
        break;
      }
      case 'W': {
        uint32_t id = take<uint32_t>();
        uint64_t offset = take<uint64_t>(), bytes = take<uint64_t>();
        take(buffer(id, offset, bytes).start + offset, bytes);
        break;
      }
      case 'R': {
        uint32_t id = take<uint32_t>();
        uint64_t offset = take<uint64_t>(), bytes = take<uint64_t>();
        give(buffer(id, offset, bytes).start + offset, bytes);
        fflush(stdout);
        break;
      }
      case 'C': counts_traffic = true; break;
      case 'N': {
        Buffer& used = buffer(take<uint32_t>(), 0, 0);
        uint64_t counts[] = {used.moved[0], used.distinct[0], used.moved[1], used.distinct[1]};
        memset(used.moved, 0, sizeof used.moved);
        memset(used.distinct, 0, sizeof used.distinct);
        give(counts, sizeof counts);
        fflush(stdout);
        break;
      }
      default: stop("an unknown command");
    }
  }
}
