// Gated delta nets over the nodes of a pass: positions in depth-first order, each after its parent. Follows rows.metal.
// HEAD is the width of a head. A row of x has the channels of the convolution, then the gates of the output, then
// strengths and decays. A held row has the channels, then the decay and the strength of each value head.

struct DeltaNet {
  uint key_heads;
  uint value_heads;
  uint positions;    // that the convolution sees, its own included
  uint flags;
  uint rows;         // of the pass
  uint nodes;
  uint held;         // places of single rows, before those of the checkpoints
  uint from;         // state before the nodes, or NO_PLACE for zeros
  uint root;         // slot that keeps it, or NO_PLACE
  uint outputs;
  float eps;
};
#define TILED 1      // value head h has key head h % key_heads, and all strengths come before all decays
#define NO_PLACE 0xffffffffu
// Words of a node after the rows that its convolution sees.
#define LOAD 0       // slot of its parent's state, or NO_PLACE if the parent is the node before
#define KEEP 1       // slot that keeps its state for later nodes, or NO_PLACE
#define SAVE 2       // place that holds its state after the pass, or NO_PLACE
#define ROW 3        // row of the output, or NO_PLACE
#define NODE_WORDS 4

METAL_FUNC uint channels_of(constant DeltaNet& p) { return (2 * p.key_heads + p.value_heads) * HEAD; }

// Values of a held row.
METAL_FUNC uint width_of(constant DeltaNet& p) { return channels_of(p) + 2 * p.value_heads; }

// Values of a row of x.
METAL_FUNC uint stride_of(constant DeltaNet& p) { return width_of(p) + p.value_heads * HEAD; }

// Channel of the input of a node: of a row of the pass, of a held row, or of none.
METAL_FUNC float channel_at(constant DeltaNet& p, device const float* x, device const float* held, uint at, uint channel) {
  if (at == NO_PLACE) return 0.0f;
  return at < p.rows ? x[at * stride_of(p) + channel] : held[(at - p.rows) * width_of(p) + channel];
}

METAL_FUNC float sigmoid_of(float x) { return 1.0f / (1.0f + precise::exp(-x)); }

// e^(rate * ln(1 + e^x)). Above 20 the logarithm is x within rounding. Where 1 + e^x is rounded, the quotient corrects
// the logarithm.
METAL_FUNC float decay_of(float x, float rate) {
  const float power = precise::exp(x), sum = 1.0f + power;
  const float softplus = x > 20.0f ? x : sum == 1.0f ? power : precise::log(sum) * (power / (sum - 1.0f));
  return precise::exp(rate * softplus);
}

// Convolutions of a node with SiLU, `[nodes, channels]`. Queries and keys are normed, and queries scaled by the root of
// their width. A simdgroup takes the channels of a head. Further ones take decays and strengths, `[nodes, 2 * value heads]`.
// Rows that the convolution sees after a saved state are written to the places of its checkpoint. No node reads those.
kernel void delta_convolve(constant DeltaNet& p [[buffer(0)]], device const float* x [[buffer(1)]],
                           device const float* weights [[buffer(2)]], device const float* rates [[buffer(3)]],
                           device const float* bias [[buffer(4)]], device const uint* nodes [[buffer(5)]],
                           device float* held [[buffer(6)]], device float* mixed [[buffer(7)]], device float* gates [[buffer(8)]],
                           uint2 group [[threadgroup_position_in_grid]], uint lane [[thread_index_in_simdgroup]],
                           uint simdgroup [[simdgroup_index_in_threadgroup]]) {
  const uint heads = 2 * p.key_heads + p.value_heads, head = group.x * 8 + simdgroup, node = group.y;
  device const uint* seen = nodes + node * (p.positions + NODE_WORDS);
  if (head >= heads) {
    const uint h = (head - heads) * 32 + lane, own = seen[p.positions - 1];
    if (h >= p.value_heads) return;
    float decay, strength;
    if (own < p.rows) {
      device const float* row = x + own * stride_of(p) + channels_of(p) + p.value_heads * HEAD;
      const uint shared = p.value_heads / p.key_heads, first = h / shared * 2 * shared + h % shared;
      const bool tiled = p.flags & TILED;
      strength = sigmoid_of(row[tiled ? h : first]);
      decay = decay_of(row[tiled ? p.value_heads + h : first + shared] + bias[h], rates[h]);
    } else {
      device const float* row = held + (own - p.rows) * width_of(p) + channels_of(p);
      decay = row[h];
      strength = row[p.value_heads + h];
    }
    gates[node * 2 * p.value_heads + h] = decay;
    gates[node * 2 * p.value_heads + p.value_heads + h] = strength;
    return;
  }
  float out[HEAD / 32], square = 0.0f;
  #pragma clang loop unroll(full)
  for (uint i = 0; i < HEAD / 32; ++i) {
    const uint channel = head * HEAD + i * 32 + lane;
    float sum = 0.0f;
    for (uint j = 0; j < p.positions; ++j)
      sum = fma(channel_at(p, x, held, seen[j], channel), weights[channel * p.positions + j], sum);
    out[i] = sum * sigmoid_of(sum);
    square = fma(out[i], out[i], square);
  }
  const float of_query = head < p.key_heads ? 1.0f / precise::sqrt(float(HEAD)) : 1.0f;
  const float scale = head < 2 * p.key_heads ? of_query / precise::sqrt(tree_sum(square) + p.eps) : 1.0f;
  const uint save = seen[p.positions + SAVE];
  #pragma clang loop unroll(full)
  for (uint i = 0; i < HEAD / 32; ++i) {
    const uint channel = head * HEAD + i * 32 + lane;
    mixed[node * channels_of(p) + channel] = out[i] * scale;
    if (save == NO_PLACE) continue;
    device float* to = held + (p.held + save * (p.positions - 1)) * width_of(p) + channel;
    for (uint j = 1; j < p.positions; ++j) to[(j - 1) * width_of(p)] = channel_at(p, x, held, seen[j], channel);
  }
}

// Moves the states along the nodes, and writes the outputs before their norm, `[rows, value heads * HEAD]`. A node computes
// S = decay * S, then S = S + k (strength * (v - S^T k))^T, and its output is S^T q. A state lies as
// `[value head, column, key]`. A simdgroup takes a column along all nodes, and each lane a key of every 32.
kernel void delta_states(constant DeltaNet& p [[buffer(0)]], device const float* mixed [[buffer(1)]],
                         device const float* gates [[buffer(2)]], device const uint* nodes [[buffer(3)]],
                         device float* states [[buffer(4)]], device float* slots [[buffer(5)]], device float* outputs [[buffer(6)]],
                         uint2 group [[threadgroup_position_in_grid]], uint lane [[thread_index_in_simdgroup]],
                         uint simdgroup [[simdgroup_index_in_threadgroup]]) {
  const uint head = group.y, column = group.x * 8 + simdgroup, own = (head * HEAD + column) * HEAD + lane;
  const uint all = p.value_heads * HEAD * HEAD;
  const uint key_head = (p.flags & TILED) ? head % p.key_heads : head / (p.value_heads / p.key_heads);
  float state[HEAD / 32];
#define EACH_KEY _Pragma("clang loop unroll(full)") for (uint i = 0; i < HEAD / 32; ++i)
#define AT(memory, place) (memory)[(place) * all + own + i * 32]
  EACH_KEY state[i] = p.from == NO_PLACE ? 0.0f : AT(states, p.from);
  if (p.root != NO_PLACE) { EACH_KEY AT(slots, p.root) = state[i]; }
  for (uint node = 0; node < p.nodes; ++node) {
    device const uint* words = nodes + node * (p.positions + NODE_WORDS) + p.positions;
    device const float* q = mixed + node * channels_of(p) + key_head * HEAD + lane;
    device const float* k = q + p.key_heads * HEAD;
    const float v = mixed[node * channels_of(p) + (2 * p.key_heads + head) * HEAD + column];
    const float decay = gates[node * 2 * p.value_heads + head];
    const float strength = gates[node * 2 * p.value_heads + p.value_heads + head];
    if (words[LOAD] != NO_PLACE) { EACH_KEY state[i] = AT(slots, words[LOAD]); }
    float key[HEAD / 32], seen = 0.0f;
    EACH_KEY {
      key[i] = k[i * 32];
      state[i] = state[i] * decay;
      seen = fma(key[i], state[i], seen);
    }
    const float change = strength * (v - tree_sum(seen));
    float sum = 0.0f;
    EACH_KEY {
      state[i] = fma(key[i], change, state[i]);
      sum = fma(q[i * 32], state[i], sum);
    }
    if (words[ROW] != NO_PLACE) {
      sum = tree_sum(sum);
      if (lane == 0) outputs[(words[ROW] * p.value_heads + head) * HEAD + column] = sum;
    }
    if (words[KEEP] != NO_PLACE) { EACH_KEY AT(slots, words[KEEP]) = state[i]; }
    if (words[SAVE] != NO_PLACE) { EACH_KEY AT(states, words[SAVE]) = state[i]; }
  }
}

// SiLU(gate) * norm(output) of each value head, as the activations of the output product. A simdgroup takes a head of a
// row. Rows that are held after the pass are written to their places. `rows` has the node and the place of each row.
kernel void delta_output(constant DeltaNet& p [[buffer(0)]], device const float* x [[buffer(1)]],
                         device const float* outputs [[buffer(2)]], device const float* gates [[buffer(3)]],
                         device const float* weight [[buffer(4)]], device const uint2* rows [[buffer(5)]],
                         device float* held [[buffer(6)]], device char* codes [[buffer(7)]], device half* halves [[buffer(8)]],
                         device float* scales [[buffer(9)]], device short2* sums [[buffer(10)]], device float* floats [[buffer(11)]],
                         uint2 group [[threadgroup_position_in_grid]], uint lane [[thread_index_in_simdgroup]],
                         uint simdgroup [[simdgroup_index_in_threadgroup]]) {
  const uint head = group.x * 8 + simdgroup, row = group.y, of_head = (row * p.value_heads + head) * (HEAD / 32);
  if (head >= p.value_heads) return;
  device const float* own = x + row * stride_of(p);
  float out[HEAD / 32], square = 0.0f;
  #pragma clang loop unroll(full)
  for (uint i = 0; i < HEAD / 32; ++i) {
    out[i] = outputs[(of_head + i) * 32 + lane];
    square = fma(out[i], out[i], square);
  }
  const float scale = 1.0f / precise::sqrt(tree_sum(square) / float(HEAD) + p.eps);
  #pragma clang loop unroll(full)
  for (uint i = 0; i < HEAD / 32; ++i) {
    const float gate = own[channels_of(p) + head * HEAD + i * 32 + lane];
    const float value = gate * sigmoid_of(gate) * (out[i] * scale * weight[i * 32 + lane]);
    write_unit(value, of_head + i, lane, p.outputs, codes, halves, scales, sums, floats);
  }
  const uint node = rows[row].x, place = rows[row].y;
  if (place == NO_PLACE) return;
  for (uint i = head * 32 + lane; i < width_of(p); i += p.value_heads * 32) {
    const uint gate = i - channels_of(p);
    held[place * width_of(p) + i] = i < channels_of(p) ? own[i] : gates[node * 2 * p.value_heads + gate];
  }
}
