// A token of a row of logits, the most likely one or a draw, so that the next pass can read it without the host.
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

struct Draw {
  uint count;        // logits
  float unit;        // random number in [0, 1)
  float sharpness;   // factor of the logits after the filters
  uint top_k;        // 0 for all
  float top_p;
  float min_p;
};
#define CANDIDATES 512
// Without top-k, candidates are at least as likely as the largest logits of so many threads.
#define THREADS_ABOVE 192

// Weight of a logit, at most 1. NaN has none, and a weight below the smallest normal float is none.
METAL_FUNC float weight_of(float value, float largest, float sharpness) {
  const float x = min((value - largest) * sharpness, 0.0f);
  return value > -INFINITY && x >= -87.33654f ? precise::exp(x) : 0.0f;
}

METAL_FUNC float lane_sum(float x) {
  for (ushort step = 1; step < 32; step *= 2) x = x + simd_shuffle_xor(x, step);
  return x;
}

METAL_FUNC float sum_of_parts(threadgroup const float* parts) {
  return ((parts[0] + parts[1]) + (parts[2] + parts[3])) + ((parts[4] + parts[5]) + (parts[6] + parts[7]));
}

// Draws a token: the first whose cumulative weight, in the order of tokens, exceeds `unit` of all weights. Top-k,
// top-p and min-p leave out tokens at temperature 1, as the host's sampler does. Sums are in f32, those of the host in
// f64, so a draw close to a boundary may differ. The host draws again from the logits and notices.
kernel void draw(constant Draw& p [[buffer(0)]], device const float* logits [[buffer(1)]], device uint* chosen [[buffer(2)]],
                 threadgroup float* scratch [[threadgroup(0)]], uint index [[thread_index_in_threadgroup]],
                 uint lane [[thread_index_in_simdgroup]], uint simdgroup [[simdgroup_index_in_threadgroup]]) {
  threadgroup float* tops = scratch;                               // largest logit of each thread
  threadgroup uint* counts = (threadgroup uint*)(scratch + 256);   // candidates of each thread
  threadgroup float* found = scratch + 512;                        // candidates, in any order
  threadgroup uint* found_tokens = (threadgroup uint*)(found + CANDIDATES);
  threadgroup float* sorted = found + 2 * CANDIDATES;              // the most likely first
  threadgroup uint* sorted_tokens = (threadgroup uint*)(found + 3 * CANDIDATES);
  threadgroup float* parts = found + 4 * CANDIDATES;               // of the simdgroups
  threadgroup uint* part_tokens = (threadgroup uint*)(parts + 8);
  threadgroup uint* last_tokens = (threadgroup uint*)(parts + 16);
  threadgroup float* shared_bound = parts + 24;

  float top = -INFINITY;
  uint at = 0xffffffff;
  for (uint i = index; i < p.count; i += 256) {
    const float value = logits[i];
    TAKE(value, i)
  }
  const float own_top = top;
  tops[index] = top;
  for (ushort step = 1; step < 32; step *= 2) {
    const float other = simd_shuffle_xor(top, step);
    const uint other_at = simd_shuffle_xor(at, step);
    TAKE(other, other_at)
  }
  if (lane == 0) {
    parts[simdgroup] = top;
    part_tokens[simdgroup] = at;
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);
  for (uint i = 0; i < 8; ++i) TAKE(parts[i], part_tokens[i])
  const uint most_likely = at < p.count ? at : 0;
  const float largest = min(top, FLT_MAX);
  threadgroup_barrier(mem_flags::mem_threadgroup);

  if (p.top_k == 0 && p.top_p >= 1.0f && p.min_p <= 0.0f) {
    // Each simdgroup adds an eighth of the range. The eighth that reaches the goal is the next range.
    uint from = 0, to = p.count;
    float goal = -1.0f;
    while (to - from > 1) {
      const uint width = (to - from + 7) / 8, begin = from + simdgroup * width, end = min(begin + width, to);
      float sum = 0.0f;
      for (uint i = begin + lane; i < end; i += 32) sum = sum + weight_of(logits[i], largest, p.sharpness);
      sum = lane_sum(sum);
      if (lane == 0) parts[simdgroup] = sum;
      threadgroup_barrier(mem_flags::mem_threadgroup);
      if (goal < 0.0f) goal = p.unit * sum_of_parts(parts);
      // If rounding leaves the goal unreached, the last part with a weight is taken.
      uint part = 0;
      float passed = 0.0f, reached = 0.0f;
      for (uint i = 0; i < 8; ++i) {
        if (parts[i] > 0.0f && reached <= goal) {
          part = i;
          passed = reached;
          reached = reached + parts[i];
        }
      }
      threadgroup_barrier(mem_flags::mem_threadgroup);
      goal = max(goal - passed, 0.0f);
      from = from + part * width;
      to = min(from + width, to);
    }
    if (index == 0) *chosen = from;
    return;
  }

  // Threads whose largest logit is above that of this one. So many tokens at least are above the bound.
  uint above = 0;
  for (uint i = 0; i < 256; ++i) above += tops[i] > own_top || (tops[i] == own_top && i < index);
  if (above == (p.top_k > 0 ? p.top_k : THREADS_ABOVE) - 1) *shared_bound = own_top;
  threadgroup_barrier(mem_flags::mem_threadgroup);
  float bound = *shared_bound;
  // True if all tokens that the filters can leave are candidates.
  bool complete = p.top_k > 0 || bound == -INFINITY;
  if (p.top_k == 0 && p.min_p > 0.0f) {
    const float least = largest + precise::log(p.min_p) - 0.001f;
    complete = complete || least >= bound;
    bound = max(bound, least);
  }
  uint own = 0;
  float sum = 0.0f;
  for (uint i = index; i < p.count; i += 256) {
    const float value = logits[i];
    own += value >= bound && value > -INFINITY;
    if (p.top_k == 0) sum = sum + weight_of(value, largest, 1.0f);
  }
  counts[index] = own;
  sum = lane_sum(sum);
  if (lane == 0) parts[simdgroup] = sum;
  threadgroup_barrier(mem_flags::mem_threadgroup);
  float total = sum_of_parts(parts);
  uint to = 0, all = 0;
  for (uint i = 0; i < 256; ++i) {
    to += i < index ? counts[i] : 0;
    all += counts[i];
  }
  if (all == 0 || all > CANDIDATES) {
    if (index == 0) *chosen = most_likely;
    return;
  }
  for (uint i = index; i < p.count && own > 0; i += 256) {
    const float value = logits[i];
    if (value >= bound && value > -INFINITY) {
      found[to] = value;
      found_tokens[to] = i;
      ++to;
      --own;
    }
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);
  for (uint i = index; i < all; i += 256) {
    const float value = found[i];
    const uint token = found_tokens[i];
    uint rank = 0;
    for (uint j = 0; j < all; ++j) rank += found[j] > value || (found[j] == value && found_tokens[j] < token);
    sorted[rank] = value;
    sorted_tokens[rank] = token;
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);
  if (index == 0) {
    const uint most = p.top_k > 0 ? min(all, p.top_k) : all;
    if (p.top_k > 0) {
      total = 0.0f;
      for (uint i = 0; i < most; ++i) total = total + weight_of(sorted[i], largest, 1.0f);
    }
    uint left = 0;
    float mass = 0.0f;
    for (bool more = true; more && left < most;) {
      const float weight = weight_of(sorted[left], largest, 1.0f);
      more = weight > 0.0f && weight >= p.min_p;
      if (more) {
        ++left;
        mass = mass + weight;
        more = p.top_p >= 1.0f || mass < total * p.top_p;
      }
      complete = complete || !more;
    }
    counts[0] = complete ? max(left, uint(1)) : 0;
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);
  const uint left = counts[0];
  if (left == 0) {
    if (index == 0) *chosen = most_likely;
    return;
  }
  for (uint i = index; i < left; i += 256) found[i] = weight_of(sorted[i], largest, p.sharpness);
  threadgroup_barrier(mem_flags::mem_threadgroup);
  float weights = 0.0f;
  for (uint i = 0; i < left; ++i) weights = weights + found[i];
  const float goal = p.unit * weights;
  uint first = 0xffffffff, last = 0;
  for (uint i = index; i < left; i += 256) {
    const uint token = sorted_tokens[i];
    float reached = 0.0f;
    for (uint j = 0; j < left; ++j) reached = reached + (sorted_tokens[j] <= token ? found[j] : 0.0f);
    if (found[i] > 0.0f) {
      last = max(last, token);
      if (reached > goal) first = min(first, token);
    }
  }
  first = simd_min(first);
  last = simd_max(last);
  if (lane == 0) {
    part_tokens[simdgroup] = first;
    last_tokens[simdgroup] = last;
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);
  if (index == 0) {
    for (uint i = 0; i < 8; ++i) {
      first = min(first, part_tokens[i]);
      last = max(last, last_tokens[i]);
    }
    *chosen = first < p.count ? first : last;
  }
}
