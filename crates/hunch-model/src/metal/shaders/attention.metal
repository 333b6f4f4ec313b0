// Attention over the cache in place, split over the context, for chains and trees.
//
// A row sees its first `base` keys in the slots of their positions, and the others in slots that a list names. So a
// row of a tree takes the same keys in the same order as the row of a chain. A span is 128 keys at fixed positions.
// A simdgroup takes one head of one row over one span; a second kernel puts the spans together, in order.
// A window leaves out all keys but the last ones of a row.
// The host defines HEAD, the width of a head: 32, 64, 96, 128 or 256.

struct Attention {
  uint heads;       // of queries
  uint group;       // heads of queries that share a head of keys
  uint stride;      // of the rows of the queries
  uint base;
  uint values;      // offset of the values in the cache, in halves
  uint spans;       // of the longest row
  float scale;
  uint outputs;     // of the second kernel
  float cap;        // of the scores, 0 for none
  uint window;      // keys that a row sees at most
  uint first;       // span of the first threadgroup
};
#define SPAN 128
#define TAIL 64       // slots in the list of a row
#define QUADS (HEAD / 4)
#define KEY_LANES 4
// The largest power of two that divides QUADS, at most 32.
#define VALUE_LANES ((QUADS & -QUADS) < 32 ? (QUADS & -QUADS) : 32)
#define VALUE_QUADS (QUADS / VALUE_LANES)

METAL_FUNC uint slot_of(constant Attention& p, device const uint* tails, uint row, uint key) {
  return key < p.base ? key : tails[row * TAIL + key - p.base];
}

// Returns the first key that a row of `length` keys sees.
METAL_FUNC uint start_of(constant Attention& p, uint length) { return length > p.window ? length - p.window : 0; }

// A threadgroup has a simdgroup for each head of a group. They read the same keys.
kernel void attend(constant Attention& p [[buffer(0)]], device const float4* q [[buffer(1)]], device const half4* cache [[buffer(2)]],
                   device const uint* lengths [[buffer(3)]], device const uint* tails [[buffer(4)]],
                   device float2* stats [[buffer(5)]], device float4* partial [[buffer(6)]], threadgroup float* scratch [[threadgroup(0)]],
                   uint3 position [[threadgroup_position_in_grid]], uint lane [[thread_index_in_simdgroup]],
                   uint simdgroup [[simdgroup_index_in_threadgroup]]) {
  const uint span = p.first + position.x, key_head = position.y, row = position.z, length = lengths[row];
  const uint first = span * SPAN, start = start_of(p, length);
  if (first >= length || first + SPAN <= start) return;
  // Keys of the span: those from `skip` to `count` are seen.
  const uint count = min(uint(SPAN), length - first), skip = start > first ? start - first : 0;
  const uint head = key_head * p.group + simdgroup;
  const uint row_quads = p.heads / p.group * QUADS;
  threadgroup float* scores = scratch + simdgroup * SPAN;
  device const half4* keys = cache + key_head * QUADS;
  device const half4* values = keys + p.values / 4;

  // Scores: four lanes a key.
  const uint part = lane % KEY_LANES;
  float4 query[QUADS / KEY_LANES];
  #pragma clang loop unroll(full)
  for (uint i = 0; i < QUADS / KEY_LANES; ++i) query[i] = q[row * (p.stride / 4) + head * QUADS + i * KEY_LANES + part] * p.scale;
  float top = -INFINITY;
  for (uint j = 0; j < SPAN; j += 32 / KEY_LANES) {
    const uint key = j + lane / KEY_LANES;
    // Lanes without a key repeat the last one, so that all lanes take part in the sums.
    device const half4* from = keys + slot_of(p, tails, row, first + min(key, count - 1)) * row_quads;
    float4 sum = float4(0.0f);
    #pragma clang loop unroll(full)
    for (uint i = 0; i < QUADS / KEY_LANES; ++i) sum = fma(query[i], float4(from[i * KEY_LANES + part]), sum);
    float score = (sum.x + sum.y) + (sum.z + sum.w);
    score = score + simd_shuffle_xor(score, 1);
    score = score + simd_shuffle_xor(score, 2);
    if (p.cap > 0.0f) score = soft_cap(score, p.cap);
    if (key >= skip && key < count) {
      top = max(top, score);
      if (part == 0) scores[key] = score;
    }
  }
  simdgroup_barrier(mem_flags::mem_threadgroup);
  top = simd_max(top);
  float sum = 0.0f;
  #pragma clang loop unroll(full)
  for (uint i = 0; i < SPAN / 32; ++i) {
    const uint key = i * 32 + lane;
    if (key >= skip && key < count) {
      const float weight = precise::exp(scores[key] - top);
      scores[key] = weight;
      sum = sum + weight;
    }
  }
  for (ushort step = 1; step < 32; step *= 2) sum = sum + simd_shuffle_xor(sum, step);
  simdgroup_barrier(mem_flags::mem_threadgroup);

  // Values: a lane has four columns, or eight of a wide head. A narrow head has several teams of lanes.
  const uint column = lane % VALUE_LANES, team = lane / VALUE_LANES;
  float4 out[VALUE_QUADS];
  #pragma clang loop unroll(full)
  for (uint i = 0; i < VALUE_QUADS; ++i) out[i] = float4(0.0f);
  for (uint key = team; key < count; key += 32 / VALUE_LANES) {
    if (key < skip) continue;
    device const half4* from = values + slot_of(p, tails, row, first + key) * row_quads;
    const float4 weight = float4(scores[key]);
    #pragma clang loop unroll(full)
    for (uint i = 0; i < VALUE_QUADS; ++i) out[i] = fma(weight, float4(from[i * VALUE_LANES + column]), out[i]);
  }
  const uint to = (row * p.heads + head) * p.spans + span;
  #pragma clang loop unroll(full)
  for (uint i = 0; i < VALUE_QUADS; ++i) {
    for (ushort step = VALUE_LANES; step < 32; step *= 2) out[i] = out[i] + simd_shuffle_xor(out[i], step);
    if (team == 0) partial[to * QUADS + i * VALUE_LANES + column] = out[i];
  }
  if (lane == 0) stats[to] = float2(top, sum);
}

// Puts the spans of a head of a row together, and writes the activations of the output product.
kernel void combine(constant Attention& p [[buffer(0)]], device const uint* lengths [[buffer(1)]], device const float2* stats [[buffer(2)]],
                    device const float* partial [[buffer(3)]],
                    device char* codes [[buffer(4)]], device half* halves [[buffer(5)]], device float* scales [[buffer(6)]],
                    device short2* sums [[buffer(7)]], device float* floats [[buffer(8)]],
                    uint2 position [[threadgroup_position_in_grid]], uint lane [[thread_index_in_simdgroup]]) {
  const uint head = position.x, row = position.y, length = lengths[row], from = (row * p.heads + head) * p.spans;
  const uint first = start_of(p, length) / SPAN, spans = (length + SPAN - 1) / SPAN;
  float top = -INFINITY;
  for (uint s = first; s < spans; ++s) top = max(top, stats[from + s].x);
  float total = 0.0f, out[HEAD / 32];
  #pragma clang loop unroll(full)
  for (uint i = 0; i < HEAD / 32; ++i) out[i] = 0.0f;
  for (uint s = first; s < spans; ++s) {
    const float2 stat = stats[from + s];
    const float weight = precise::exp(stat.x - top);
    total = fma(weight, stat.y, total);
    #pragma clang loop unroll(full)
    for (uint i = 0; i < HEAD / 32; ++i) out[i] = fma(weight, partial[(from + s) * HEAD + i * 32 + lane], out[i]);
  }
  #pragma clang loop unroll(full)
  for (uint i = 0; i < HEAD / 32; ++i)
    write_unit(out[i] / total, (row * p.heads + head) * (HEAD / 32) + i, lane, p.outputs, codes, halves, scales, sums, floats);
}
