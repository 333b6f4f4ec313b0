// The most likely token of a row of logits, so that the next pass can read it without the host.
#include <metal_stdlib>
using namespace metal;

struct Choice {
  uint count;    // logits
};

// Takes the larger value, and of equal ones the lower index.
#define TAKE(other, other_at) if (other > top || (other == top && other_at < at)) { top = other; at = other_at; }

// A threadgroup of 8 simdgroups takes the row.
kernel void choose(constant Choice& p [[buffer(0)]], device const float* logits [[buffer(1)]], device uint* chosen [[buffer(2)]],
                   threadgroup float* scratch [[threadgroup(0)]], uint index [[thread_index_in_threadgroup]],
                   uint lane [[thread_index_in_simdgroup]], uint simdgroup [[simdgroup_index_in_threadgroup]]) {
  float top = -INFINITY;
  uint at = 0xffffffff;
  for (uint i = index; i < p.count; i += 256) {
    const float value = logits[i];
    TAKE(value, i)
  }
  for (ushort step = 1; step < 32; step *= 2) {
    const float other = simd_shuffle_xor(top, step);
    const uint other_at = simd_shuffle_xor(at, step);
    TAKE(other, other_at)
  }
  threadgroup uint* indices = (threadgroup uint*)(scratch + 8);
  if (lane == 0) {
    scratch[simdgroup] = top;
    indices[simdgroup] = at;
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);
  if (index == 0) {
    for (uint i = 0; i < 8; ++i) TAKE(scratch[i], indices[i])
    // Without any number there is no larger one. The token has to exist all the same.
    *chosen = at < p.count ? at : 0;
  }
}
