// Attention over the cache in place, split over the context, for chains and trees.
//
// A row sees its first `base` keys in the slots of their positions, and the others in slots that a list names. So a
// row of a tree takes the same keys in the same order as the row of a chain. A span is 128 keys at fixed positions.
// A threadgroup takes one span and one head of keys, for a block of rows and for all heads of queries that share it. It
// brings keys and values to threadgroup memory in sections, so memory is read once. A pair is a head of a row. A second
// kernel puts the spans together, in order.
//
// The arithmetic of a pair is the same in every layout of pairs over lanes. A score is a sum of parts, whose number depends on HEAD. A section
// changes the running sums only if the row sees some of its keys. Each column adds its keys in order. So the bits of a
// row do not depend on the other rows, nor on PAIRS.
//
// A window leaves out all keys but the first and the last ones of a row, a chunk all keys before it.
// A dispatch takes some rows of a pass, so that the results of their spans fit into memory in a long context.
//
// The host defines HEAD, the width of a head, as 32, 64, 96, 128, 256 or 512.
//
// PAIRS is the number of pairs of a simdgroup, and 1, 2, 4 or 8.

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
  uint window;      // last keys that a row sees
  uint leading;     // first keys that a row sees, whatever the window
  uint firsts;      // spans with first keys, before those that no row sees
  uint lasts;       // span after those that no row sees
  uint rows;        // of the dispatch
  uint first;       // row of the pass, before those of the dispatch
  uint block;       // rows of a threadgroup
  uint threads;     // of a threadgroup of the first kernel
  uint sinks;       // 1 if a score of each head takes part in the softmax and has no value
  uint gated;       // 1 if outputs are multiplied by the sigmoid of a gate
  uint chunk;       // a row sees keys of its own chunk of so many keys, 0 for all
};
#define SPAN 128
#define TAIL 64       // slots in the list of a row
#define QUADS (HEAD / 4)
// Lanes that compute a score. A lane keeps its part of the query in registers, so a wide head has more lanes.
#define KEY_LANES (HEAD > 256 ? 16 : HEAD > 128 ? 8 : 4)
// Keys that are in threadgroup memory at once.
#define SECTION (HEAD > 256 ? 8 : HEAD > 128 ? 16 : 32)
// Words of 16 bytes of a key.
#define WORDS (HEAD / 8)
// Keys are apart, so that lanes with different keys read from different banks. With 8 pairs all lanes read one key.
#define KEY_WORDS (WORDS + (PAIRS < 8 ? 2 : 0))
// Keys that a simdgroup scores at once.
#define KEYS_AT_ONCE (32 / KEY_LANES / PAIRS)
// The largest power of two that divides QUADS, at most 32.
#define VALUE_LANES ((QUADS & -QUADS) < 32 ? (QUADS & -QUADS) : 32)
#define VALUE_QUADS (QUADS / VALUE_LANES)
#define TEAMS (32 / VALUE_LANES)

METAL_FUNC uint slot_of(constant Attention& p, device const uint* tails, uint row, uint key) {
  return key < p.base ? key : tails[row * TAIL + key - p.base];
}

// Returns the first of the last keys that a row of `length` keys sees.
METAL_FUNC uint start_of(constant Attention& p, uint length) {
  const uint start = length > p.window ? length - p.window : 0;
  return p.chunk && length > p.chunk ? max(start, (length - 1) / p.chunk * p.chunk) : start;
}

// Returns the number of first keys that a row whose last keys begin at `start` sees: none after the first chunk.
METAL_FUNC uint leading_of(constant Attention& p, uint start) { return p.chunk && start >= p.chunk ? 0 : p.leading; }

// Returns whether a row whose last keys begin at `start` sees none of the keys from `from` to `to`.
METAL_FUNC bool is_hidden(constant Attention& p, uint from, uint to, uint start) { return to <= start && from >= leading_of(p, start); }

#if defined(PAIRS)
// Adds the values of a key, times the weight of each pair that `sees` it.
#define ADD_VALUES(sees)                                                                                      \
  for (uint key = team; key < SECTION; key += TEAMS) {                                                        \
    float4 value[VALUE_QUADS];                                                                                \
    _Pragma("clang loop unroll(full)")                                                                        \
    for (uint i = 0; i < VALUE_QUADS; ++i) value[i] = float4(values[key * QUADS + i * VALUE_LANES + column]); \
    _Pragma("clang loop unroll(full)")                                                                        \
    for (uint b = 0; b < PAIRS; ++b) {                                                                        \
      if (!(sees)) continue;                                                                                  \
      const float4 weight = float4(scores[b * SECTION + key]);                                                \
      _Pragma("clang loop unroll(full)")                                                                      \
      for (uint i = 0; i < VALUE_QUADS; ++i) out[b][i] = fma(weight, value[i], out[b][i]);                    \
    }                                                                                                         \
  }

// The limit keeps the compiler from using so many registers that fewer threads fit.
[[kernel, max_total_threads_per_threadgroup(512)]] void attend(
    constant Attention& p [[buffer(0)]], device const float4* q [[buffer(1)]], device const uint4* cache [[buffer(2)]],
    device const uint* lengths [[buffer(3)]], device const uint* tails [[buffer(4)]],
    device float2* stats [[buffer(5)]], device float4* partial [[buffer(6)]], threadgroup uint4* scratch [[threadgroup(0)]],
    uint3 position [[threadgroup_position_in_grid]], uint index [[thread_index_in_threadgroup]],
    uint lane [[thread_index_in_simdgroup]], uint simdgroup [[simdgroup_index_in_threadgroup]]) {
  const uint span = position.x < p.firsts ? position.x : position.x - p.firsts + p.lasts, key_head = position.y, offset = position.z * p.block, first_row = p.first + offset;
  const uint rows = min(p.block, p.rows - offset), first = span * SPAN;
  uint longest = 0, earliest = 0xffffffff;
  for (uint r = 0; r < rows; ++r) {
    const uint length = lengths[first_row + r];
    longest = max(longest, length);
    earliest = min(earliest, start_of(p, length));
  }
  if (first >= longest || is_hidden(p, first, first + SPAN, earliest)) return;
  const uint end = min(first + SPAN, longest);

  threadgroup const half4* values = (threadgroup const half4*)(scratch + SECTION * KEY_WORDS);
  threadgroup float* scores = (threadgroup float*)(scratch + SECTION * (KEY_WORDS + WORDS)) + simdgroup * (PAIRS * SECTION);
  const uint row_words = p.heads / p.group * WORDS;

  // The pairs of this simdgroup. Pairs past the last one see no keys.
  uint pair_row[PAIRS], length[PAIRS];
  #pragma clang loop unroll(full)
  for (uint b = 0; b < PAIRS; ++b) {
    const uint pair = simdgroup * PAIRS + b;
    pair_row[b] = pair / p.group;
    length[b] = pair_row[b] < rows ? lengths[first_row + pair_row[b]] : 0;
  }
  // The pair and the key whose score this lane helps to compute, and its part of the query.
  const uint part = lane % KEY_LANES, own = lane / KEY_LANES % PAIRS, own_key = lane / KEY_LANES / PAIRS;
  const uint own_pair = min(simdgroup * PAIRS + own, rows * p.group - 1), own_row = own_pair / p.group;
  const uint own_length = lengths[first_row + own_row], own_start = start_of(p, own_length);
  float4 query[QUADS / KEY_LANES];
  device const float4* from = q + (first_row + own_row) * (p.stride / 4) + (key_head * p.group + own_pair % p.group) * QUADS;
  #pragma clang loop unroll(full)
  for (uint i = 0; i < QUADS / KEY_LANES; ++i) query[i] = from[i * KEY_LANES + part] * p.scale;

  // The largest score of each pair, the sum of weights, and the weighted values: a lane has four columns, or more of a
  // wide head. A narrow head has several teams of lanes.
  const uint column = lane % VALUE_LANES, team = lane / VALUE_LANES;
  float top[PAIRS], sum[PAIRS];
  float4 out[PAIRS][VALUE_QUADS];
  #pragma clang loop unroll(full)
  for (uint b = 0; b < PAIRS; ++b) {
    top[b] = -INFINITY;
    sum[b] = 0.0f;
    #pragma clang loop unroll(full)
    for (uint i = 0; i < VALUE_QUADS; ++i) out[b][i] = float4(0.0f);
  }

  for (uint section = first; section < end; section += SECTION) {
    if (is_hidden(p, section, section + SECTION, earliest)) continue;
    // All rows have the same keys, or those after `base` are brought for one row after the other.
    const bool shared = section + SECTION <= p.base;
    for (uint turn = 0; turn < (shared ? 1 : rows); ++turn) {
      const uint from_key = turn > 0 ? max(section, p.base) : section;
      const uint to_key = min(section + SECTION, shared ? end : lengths[first_row + turn]);
      if (to_key > from_key) {
        const uint words = (to_key - from_key) * WORDS, skipped = from_key - section;
        for (uint i = index; i < words; i += p.threads) {
          const uint key = i / WORDS, word = i % WORDS;
          device const uint4* row = cache + key_head * WORDS + slot_of(p, tails, first_row + turn, from_key + key) * row_words;
          scratch[(skipped + key) * KEY_WORDS + word] = row[word];
          scratch[SECTION * KEY_WORDS + (skipped + key) * WORDS + word] = row[p.values / 8 + word];
        }
      }
      threadgroup_barrier(mem_flags::mem_threadgroup);

      // Scores: KEY_LANES lanes for a key and a pair.
      for (uint j = 0; j < SECTION; j += KEYS_AT_ONCE) {
        const uint key = j + own_key;
        threadgroup const half4* keys = (threadgroup const half4*)(scratch + key * KEY_WORDS);
        float4 products = float4(0.0f);
        #pragma clang loop unroll(full)
        for (uint i = 0; i < QUADS / KEY_LANES; ++i) products = fma(query[i], float4(keys[i * KEY_LANES + part]), products);
        float score = (products.x + products.y) + (products.z + products.w);
        for (ushort step = 1; step < KEY_LANES; step *= 2) score = score + simd_shuffle_xor(score, step);
        if (p.cap > 0.0f) score = soft_cap(score, p.cap);
        if (part == 0) scores[own * SECTION + key] = score;
      }
      simdgroup_barrier(mem_flags::mem_threadgroup);

      // Weights of the keys that a pair sees: those from `start` on and before `length`.
      bool all = true;
      #pragma clang loop unroll(full)
      for (uint b = 0; b < PAIRS; ++b) {
        const uint start = start_of(p, length[b]);
        const bool is_turn = shared || pair_row[b] == turn;
        all = all && is_turn && (section >= start || section + SECTION <= leading_of(p, start)) && section + SECTION <= length[b];
        if (!is_turn || section >= length[b] || is_hidden(p, section, section + SECTION, start)) continue;
        const uint key = section + lane;
        const bool seen = lane < SECTION && (key >= start || key < leading_of(p, start)) && key < length[b];
        const float score = seen ? scores[b * SECTION + lane] : -INFINITY;
        const float higher = max(top[b], simd_max(score));
        // The first section has nothing to scale.
        const float scale = higher > top[b] && top[b] > -INFINITY ? precise::exp(top[b] - higher) : 1.0f;
        const float weight = seen ? precise::exp(score - higher) : 0.0f;
        float weights = weight;
        for (ushort step = 1; step < 32; step *= 2) weights = weights + simd_shuffle_xor(weights, step);
        sum[b] = fma(sum[b], scale, weights);
        top[b] = higher;
        #pragma clang loop unroll(full)
        for (uint i = 0; i < VALUE_QUADS; ++i) out[b][i] = out[b][i] * scale;
        if (lane < SECTION) scores[b * SECTION + lane] = weight;
      }
      simdgroup_barrier(mem_flags::mem_threadgroup);

      if (all) {
        ADD_VALUES(true)
      } else {
        ADD_VALUES((shared || pair_row[b] == turn) && !is_hidden(p, section + key, section + key + 1, start_of(p, length[b])) && section + key < length[b])
      }
      threadgroup_barrier(mem_flags::mem_threadgroup);
    }
  }

  #pragma clang loop unroll(full)
  for (uint b = 0; b < PAIRS; ++b) {
    // Nobody reads the spans of which a row sees no key.
    if (first >= length[b] || is_hidden(p, first, first + SPAN, start_of(p, length[b]))) continue;
    const uint head = key_head * p.group + (simdgroup * PAIRS + b) % p.group;
    const uint to = ((offset + pair_row[b]) * p.heads + head) * p.spans + span;
    #pragma clang loop unroll(full)
    for (uint i = 0; i < VALUE_QUADS; ++i) {
      for (ushort step = VALUE_LANES; step < 32; step *= 2) out[b][i] = out[b][i] + simd_shuffle_xor(out[b][i], step);
      if (team == 0) partial[to * QUADS + i * VALUE_LANES + column] = out[b][i];
    }
    if (lane == 0) stats[to] = float2(top[b], sum[b]);
  }
}
#endif

// Puts the spans of a head of a row together, and writes the activations of the output product.
kernel void combine(constant Attention& p [[buffer(0)]], device const uint* lengths [[buffer(1)]], device const float2* stats [[buffer(2)]],
                    device const float* partial [[buffer(3)]],
                    device char* codes [[buffer(4)]], device half* halves [[buffer(5)]], device float* scales [[buffer(6)]],
                    device short2* sums [[buffer(7)]], device float* floats [[buffer(8)]], device const float* sinks [[buffer(9)]],
                    device const float* gates [[buffer(10)]],
                    uint2 position [[threadgroup_position_in_grid]], uint lane [[thread_index_in_simdgroup]]) {
  const uint head = position.x, row = p.first + position.y, length = lengths[row], from = (position.y * p.heads + head) * p.spans;
  // The spans with its first keys, and those with its last ones.
  const uint start = start_of(p, length), firsts = (min(leading_of(p, start), start) + SPAN - 1) / SPAN, lasts = max(firsts, start / SPAN);
  const uint spans = firsts + (length + SPAN - 1) / SPAN - lasts;
  const float sink = p.sinks ? sinks[head] : -INFINITY;
  float top = sink;
  for (uint s = 0; s < spans; ++s) top = max(top, stats[from + (s < firsts ? s : s - firsts + lasts)].x);
  float total = precise::exp(sink - top), out[HEAD / 32];
  #pragma clang loop unroll(full)
  for (uint i = 0; i < HEAD / 32; ++i) out[i] = 0.0f;
  for (uint s = 0; s < spans; ++s) {
    const uint at = from + (s < firsts ? s : s - firsts + lasts);
    const float2 stat = stats[at];
    const float weight = precise::exp(stat.x - top);
    total = fma(weight, stat.y, total);
    #pragma clang loop unroll(full)
    for (uint i = 0; i < HEAD / 32; ++i) out[i] = fma(weight, partial[at * HEAD + i * 32 + lane], out[i]);
  }
  #pragma clang loop unroll(full)
  for (uint i = 0; i < HEAD / 32; ++i) {
    float value = out[i] / total;
    if (p.gated) value = value / (1.0f + precise::exp(-gates[row * p.stride + head * HEAD + i * 32 + lane]));
    write_unit(value, (row * p.heads + head) * (HEAD / 32) + i, lane, p.outputs, codes, halves, scales, sums, floats);
  }
}
