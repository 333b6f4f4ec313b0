// Runs a threadgroup as fibres on one thread. Included after the shader text, once a library.
//
// A fibre runs until it meets the others. Which fibre goes on is drawn from a seed, so a missing barrier shows
// as a difference between seeds, or as poison from memory that was read before it was written.
#pragma once

namespace sim {
  // A buffer whose loads and stores are counted: bytes of all threads, and different bytes. `seen` has a byte for each
  // two bytes of the buffer, with a bit for loads and one for stores.
  struct Traffic {
    unsigned char* start;
    uint64_t bytes, moved[2], distinct[2];
    unsigned char* seen;
  };
  struct Launch {
    void* const* buffers;       // by index of the kernel's buffers
    uint32_t groups[3], threads[3];
    unsigned char* scratch;     // threadgroup memory
    uint64_t scratch_bytes;
    uint64_t seed;              // 0: fibres in order
    uint32_t order;             // order of sums: 0, 1 or 2
    uint32_t mapping;           // elements of matrices by lane: 0 or 1
    uint32_t counted;           // buffers in `traffic`
    Traffic* traffic;
  };

  struct Meeting { uint here, of; Operation operation; uint waiting[1024]; };
  struct Simdgroup { Meeting meeting; uint turn; Slot slots[2][32]; float matrices[2][2][64]; uint slot_turn[32], matrix_turn[32]; };
  struct Fibre { void* stack_pointer; };

  static const uint MAX_THREADS = 1024;
  // Not a multiple of the page size or of another power of two: stacks that start at such distances would share the
  // same few places of a cache, and every switch would miss.
  static const size_t STACK = 261 * 1024 + 64;
  static const Launch* launch;
  static Fibre fibres[MAX_THREADS];
  static Simdgroup simdgroups[MAX_THREADS / 32];
  static Meeting group_meeting;
  // Queue of the fibres that can run, a ring from `ready_first`.
  static uint ready[MAX_THREADS], ready_first, ready_count;
  static uint alive, current, group_position[3];
  static uint64_t random_state;
  static unsigned char* stacks;
  static void* home;
  static const char* failure;
  static void (*body)();

  extern "C" __attribute__((visibility("hidden"))) void sim_switch(void** from, void* to);
#if defined(__APPLE__)
#define SIM_SYMBOL "_sim_switch"
#else
#define SIM_SYMBOL "sim_switch"
#endif
#if defined(__x86_64__)
  asm(".text\n.globl " SIM_SYMBOL "\n" SIM_SYMBOL ":\n"
      "pushq %rbp\npushq %rbx\npushq %r12\npushq %r13\npushq %r14\npushq %r15\n"
      "movq %rsp, (%rdi)\nmovq %rsi, %rsp\n"
      "popq %r15\npopq %r14\npopq %r13\npopq %r12\npopq %rbx\npopq %rbp\nret\n");
  static void* new_stack(unsigned char* top, void (*entry)()) {
    void** sp = (void**)top;
    *--sp = 0;
    *--sp = (void*)entry;
    for (int i = 0; i < 6; ++i) *--sp = 0;
    return sp;
  }
#elif defined(__aarch64__)
  asm(".text\n.globl " SIM_SYMBOL "\n.p2align 2\n" SIM_SYMBOL ":\n"
      "sub sp, sp, #176\n"
      "stp x19, x20, [sp]\nstp x21, x22, [sp, #16]\nstp x23, x24, [sp, #32]\nstp x25, x26, [sp, #48]\n"
      "stp x27, x28, [sp, #64]\nstp x29, x30, [sp, #80]\nstp d8, d9, [sp, #96]\nstp d10, d11, [sp, #112]\n"
      "stp d12, d13, [sp, #128]\nstp d14, d15, [sp, #144]\n"
      "mov x9, sp\nstr x9, [x0]\nmov sp, x1\n"
      "ldp x19, x20, [sp]\nldp x21, x22, [sp, #16]\nldp x23, x24, [sp, #32]\nldp x25, x26, [sp, #48]\n"
      "ldp x27, x28, [sp, #64]\nldp x29, x30, [sp, #80]\nldp d8, d9, [sp, #96]\nldp d10, d11, [sp, #112]\n"
      "ldp d12, d13, [sp, #128]\nldp d14, d15, [sp, #144]\n"
      "add sp, sp, #176\nret\n");
  static void* new_stack(unsigned char* top, void (*entry)()) {
    void** sp = (void**)(top - 176);
    for (int i = 0; i < 22; ++i) sp[i] = 0;
    sp[11] = (void*)entry;
    return sp;
  }
#else
#error "The simulator switches fibres on x86-64 and arm64 only."
#endif

  static void switch_to(uint next) {
    uint from = current;
    current = next;
    if (from != next) sim_switch(&fibres[from].stack_pointer, fibres[next].stack_pointer);
  }
  static void fail(const char* reason) {
    failure = reason;
    void* dropped;
    sim_switch(&dropped, home);
  }
  static uint& ready_at(uint place) { return ready[(ready_first + place) % MAX_THREADS]; }
  static void add_first(uint fibre) { --ready_first; ++ready_count; ready_at(0) = fibre; }
  static void add_last(uint fibre) { ready_at(ready_count++) = fibre; }
  // Removes one runnable fibre from the queue.
  static uint take_ready() {
    uint at = 0;
    if (random_state) {
      random_state ^= random_state << 13; random_state ^= random_state >> 7; random_state ^= random_state << 17;
      at = (uint)(random_state >> 33) % ready_count;
    }
    uint next = ready_at(at);
    --ready_count;
    if (random_state) ready_at(at) = ready_at(ready_count);
    else ++ready_first;
    return next;
  }
  static void run_another() {
    if (!ready_count) fail("a barrier or an operation of a simdgroup is not reached by all of its threads");
    switch_to(take_ready());
  }
  static void meet(Meeting& meeting, Operation operation) {
    if (!meeting.here) meeting.operation = operation;
    else if (meeting.operation != operation) fail("the lanes of a simdgroup are at different operations");
    meeting.waiting[meeting.here++] = current;
    if (meeting.here < meeting.of) return run_another();
    meeting.here = 0;
    if (!random_state) {
      // In order: this fibre goes on, the others follow, before those of other simdgroups, whose stacks would push
      // theirs out of the cache.
      for (uint i = meeting.of - 1; i-- > 0;) add_first(meeting.waiting[i]);
      return;
    }
    for (uint i = 0; i < meeting.of; ++i) add_last(meeting.waiting[i]);
    run_another();
  }
  static Simdgroup& own() { return simdgroups[current / 32]; }

  uint lane() { return current % 32; }
  uint order() { return launch->order; }
  void meet_group() { meet(group_meeting, BARRIER); }
  void meet_simdgroup(Operation operation) { meet(own().meeting, operation); }
  Slot* exchange(const void* value, size_t bytes, Operation operation) {
    Simdgroup& group = own();
    uint lane = current % 32, turn = group.slot_turn[lane]++ & 1;
    if (bytes > sizeof(Slot)) fail("a value of more than 16 bytes is shuffled");
    __builtin_memcpy(&group.slots[turn][lane], value, bytes);
    meet(group.meeting, operation);
    return group.slots[turn];
  }
  uint matrix_row(uint i) {
    uint lane = current % 32;
    return launch->mapping ? (lane % 4) * 2 + i : ((lane >> 2) & 4) + ((lane >> 1) & 3);
  }
  uint matrix_column(uint i) {
    uint lane = current % 32;
    return launch->mapping ? lane / 4 : ((lane >> 2) & 2) * 2 + (lane & 1) * 2 + i;
  }
  float (*exchange_matrices(const float* a, const float* b))[64] {
    Simdgroup& group = own();
    uint turn = group.matrix_turn[current % 32]++ & 1;
    for (uint i = 0; i < 2; ++i) {
      uint at = matrix_row(i) * 8 + matrix_column(i);
      group.matrices[turn][0][at] = a[i];
      group.matrices[turn][1][at] = b[i];
    }
    meet(group.meeting, MATRIX);
    return group.matrices[turn];
  }

  static void entry() {
    body();
    --alive;
    if (alive) run_another();
    void* dropped;
    sim_switch(&dropped, home);
  }

  static uint threads() { return launch->threads[0] * launch->threads[1] * launch->threads[2]; }
  static uint3 vector_of(const uint32_t* v) { return uint3{v[0], v[1], v[2]}; }
  static uint3 thread_position() {
    uint x = launch->threads[0], y = launch->threads[1];
    return uint3{current % x, current / x % y, current / (x * y)};
  }
  // Attributes of kernel arguments, by name. A kernel that asks for one number takes the first.
  static uint3 one(uint x) { return uint3{x, 0, 0}; }
  static uint3 threadgroup_position_in_grid() { return vector_of(group_position); }
  static uint3 threadgroups_per_grid() { return vector_of(launch->groups); }
  static uint3 threads_per_threadgroup() { return vector_of(launch->threads); }
  static uint3 thread_position_in_threadgroup() { return thread_position(); }
  static uint3 thread_position_in_grid() { return vector_of(group_position) * vector_of(launch->threads) + thread_position(); }
  static uint3 thread_index_in_threadgroup() { return one(current); }
  static uint3 thread_index_in_simdgroup() { return one(current % 32); }
  static uint3 simdgroup_index_in_threadgroup() { return one(current / 32); }
  static uint3 simdgroups_per_threadgroup() { return one((threads() + 31) / 32); }

  static const char* run(const Launch* what, void (*kernel_body)(), void* (*allocate)(size_t)) {
    launch = what; body = kernel_body; failure = 0;
    uint count = threads();
    if (!count || count > MAX_THREADS) return "a threadgroup has 1 to 1024 threads";
    if (what->scratch_bytes > 32768) return "a threadgroup has at most 32 KiB of memory";
    if (!stacks) stacks = (unsigned char*)allocate(STACK * MAX_THREADS);
    random_state = what->seed;
    for (uint z = 0; z < what->groups[2]; ++z) for (uint y = 0; y < what->groups[1]; ++y) for (uint x = 0; x < what->groups[0]; ++x) {
      group_position[0] = x; group_position[1] = y; group_position[2] = z;
      // Threadgroup memory holds anything at first.
      __builtin_memset(what->scratch, 0xff, what->scratch_bytes);
      group_meeting.here = 0; group_meeting.of = count;
      for (uint i = 0; i < count; i += 32) {
        Simdgroup& group = simdgroups[i / 32];
        group.meeting.here = 0; group.meeting.of = count - i < 32 ? count - i : 32;
        for (uint j = 0; j < 32; ++j) group.slot_turn[j] = group.matrix_turn[j] = 0;
      }
      ready_count = 0; alive = count;
      for (uint i = 0; i < count; ++i) {
        fibres[i].stack_pointer = new_stack(stacks + STACK * (i + 1), entry);
        add_last(i);
      }
      current = take_ready();
      sim_switch(&home, fibres[current].stack_pointer);
      if (failure) return failure;
    }
    return 0;
  }
}

#ifdef SIM_COUNT_TRAFFIC
// The compiler calls these before each load and store (-fsanitize-coverage=trace-loads,trace-stores).
namespace sim {
  __attribute__((no_sanitize("coverage"))) static void count(const void* at, uint64_t bytes, uint32_t is_store) {
    if (!launch) return;
    // Most are of threadgroup memory and of stacks.
    if ((uint64_t)((const unsigned char*)at - launch->scratch) < launch->scratch_bytes) return;
    if ((uint64_t)((const unsigned char*)at - stacks) < STACK * MAX_THREADS) return;
    static uint32_t last;
    for (uint32_t n = 0; n < launch->counted; ++n) {
      const uint32_t i = (last + n) % launch->counted;
      Traffic& traffic = launch->traffic[i];
      const uint64_t offset = (uint64_t)((const unsigned char*)at - traffic.start);
      if (offset >= traffic.bytes) continue;
      last = i;
      traffic.moved[is_store] += bytes;
      // At most 16 bytes, so at most 8 of `seen`, which has as many more than the buffer needs.
      const uint64_t marks = (bytes < 2 ? 1 : bytes / 2) * 8, bits = 0x0101010101010101ull << is_store;
      const uint64_t mask = marks < 64 ? bits & ((1ull << marks) - 1) : bits;
      uint64_t seen;
      __builtin_memcpy(&seen, traffic.seen + offset / 2, 8);
      if ((seen & mask) == mask) return;
      traffic.distinct[is_store] += 2 * __builtin_popcountll(mask & ~seen);
      seen |= mask;
      __builtin_memcpy(traffic.seen + offset / 2, &seen, 8);
      return;
    }
  }
}
#define SIM_TRAFFIC(kind, bytes, is_store)                                                         \
  extern "C" __attribute__((no_sanitize("coverage"), visibility("hidden")))                        \
  void __sanitizer_cov_##kind##bytes(const void* at) { sim::count(at, bytes, is_store); }
SIM_TRAFFIC(load, 1, 0) SIM_TRAFFIC(load, 2, 0) SIM_TRAFFIC(load, 4, 0) SIM_TRAFFIC(load, 8, 0) SIM_TRAFFIC(load, 16, 0)
SIM_TRAFFIC(store, 1, 1) SIM_TRAFFIC(store, 2, 1) SIM_TRAFFIC(store, 4, 1) SIM_TRAFFIC(store, 8, 1) SIM_TRAFFIC(store, 16, 1)
#endif
