// Operations on the rows of a pass: norm, gate, head norm with rotation and cache append, and the 8-bit codes of
// activations for the products.
#include <metal_stdlib>
using namespace metal;

// Forms in which the activations of the next product are written.
#define WRITE_CODES 1     // 8-bit codes, for one row
#define WRITE_HALVES 2    // the same codes as halves, for the matrix unit
#define WRITE_FLOATS 4    // unquantised

// Sums over a simdgroup in a fixed order. The result is the same in all lanes.
METAL_FUNC float tree_sum(float x) {
  for (ushort step = 1; step < 32; step *= 2) x = x + simd_shuffle_xor(x, step);
  return x;
}

// Quantises a unit of 32 values, one a lane: code = round(value * 127 / largest magnitude).
METAL_FUNC void write_unit(float value, uint unit, uint lane, uint outputs, device char* codes, device half* halves,
                           device float* scales, device short2* sums, device float* floats) {
  if (outputs & WRITE_FLOATS) floats[unit * 32 + lane] = value;
  if (!(outputs & (WRITE_CODES | WRITE_HALVES))) return;
  const float top = simd_max(fabs(value)), scale = top / 127.0f;
  const float inverse = scale > 0.0f ? 1.0f / scale : 0.0f;
  const int code = int(rint(value * inverse));
  int sum = code;
  for (ushort step = 1; step < 16; step *= 2) sum = sum + simd_shuffle_xor(sum, step);
  const int other = simd_shuffle_xor(sum, 16);
  if (outputs & WRITE_CODES) codes[unit * 32 + lane] = char(code);
  if (outputs & WRITE_HALVES) halves[unit * 32 + lane] = half(code);
  if (lane == 0) {
    scales[unit] = scale;
    sums[unit] = short2(short(sum), short(other));
  }
}

struct Norm {
  uint width;
  uint outputs;
  float eps;
  uint first;    // row of the input that is row 0 of the output
  uint flags;
  float scale;   // of the update
  float factor;  // of the row and its update
};
#define NORM 1        // without it the output is the row itself
#define UPDATE 2      // adds the norm of an update to the row first
#define STORE 4       // writes the updated row back

// Sums squares over a threadgroup of 8 simdgroups, in a fixed order.
METAL_FUNC float group_sum(float square, threadgroup float* scratch, uint lane, uint simdgroup) {
  square = tree_sum(square);
  if (lane == 0) scratch[simdgroup] = square;
  threadgroup_barrier(mem_flags::mem_threadgroup);
  return ((scratch[0] + scratch[1]) + (scratch[2] + scratch[3])) + ((scratch[4] + scratch[5]) + (scratch[6] + scratch[7]));
}

// RMS norm of a row: x / sqrt(mean(x^2) + eps) * weight. A threadgroup of 8 simdgroups takes a row.
// The output of the layer's last part may need a norm of its own, so it joins the row here.
kernel void norm(constant Norm& p [[buffer(0)]], device float* x [[buffer(1)]], device const float* weight [[buffer(2)]],
                 device const float* updates [[buffer(3)]], device const float* update_weight [[buffer(4)]],
                 device char* codes [[buffer(5)]], device half* halves [[buffer(6)]], device float* scales [[buffer(7)]],
                 device short2* sums [[buffer(8)]], device float* floats [[buffer(9)]], threadgroup float* scratch [[threadgroup(0)]],
                 uint row [[threadgroup_position_in_grid]], uint index [[thread_index_in_threadgroup]],
                 uint lane [[thread_index_in_simdgroup]], uint simdgroup [[simdgroup_index_in_threadgroup]]) {
  device float* from = x + (p.first + row) * p.width;
  device const float* update = updates + (p.first + row) * p.width;
  float update_scale = 0.0f;
  if (p.flags & UPDATE) {
    float square = 0.0f;
    for (uint i = index; i < p.width; i += 256) square = fma(update[i], update[i], square);
    const float total = group_sum(square, scratch + 8, lane, simdgroup);
    update_scale = 1.0f / precise::sqrt(total / float(p.width) + p.eps);
  }
#define VALUE(i) ((p.flags & UPDATE) ? fma(update[i] * update_scale * update_weight[i], p.scale, from[i]) * p.factor : from[i])
  float scale = 1.0f;
  if (p.flags & NORM) {
    float square = 0.0f;
    for (uint i = index; i < p.width; i += 256) {
      const float value = VALUE(i);
      square = fma(value, value, square);
    }
    scale = 1.0f / precise::sqrt(group_sum(square, scratch, lane, simdgroup) / float(p.width) + p.eps);
  }
  const uint units = p.width / 32;
  for (uint u = simdgroup; u < units; u += 8) {
    const uint i = u * 32 + lane;
    const float value = VALUE(i);
    if (p.flags & STORE) from[i] = value;
    const float out = (p.flags & NORM) ? value * scale * weight[i] : value;
    write_unit(out, row * units + u, lane, p.outputs, codes, halves, scales, sums, floats);
  }
#undef VALUE
}

struct Gate {
  uint width;
  uint outputs;
  uint kind;     // of the activation
  uint stride;   // of the rows of gates
  uint up_stride;
  uint scaled;   // 1 if gates and ups are multiplied by a factor of their row first
};
#define GELU 1
#define CLAMPED 2     // else SiLU
#define CLAMPED_BOUND 7.0f
#define CLAMPED_SLOPE 1.702f
#define GELU_SLOPE 1.5957691216f    // 2 sqrt(2 / pi)
#define GELU_CUBIC 0.044715f

// activation(gate) * up. The ups of a row may follow its gates in the same buffer. SiLU is g / (1 + e^-g), and GELU
// is g / (1 + e^-s) with s = 2 sqrt(2 / pi) (g + 0.044715 g^3). The bounded gate of gpt-oss is g / (1 + e^-1.702 g)
// times up + 1, with g at most 7 and up from -7 to 7.
//
// A factor of a row multiplies gate and up first, as if it had multiplied the input of both products.
kernel void gate(constant Gate& p [[buffer(0)]], device const float* gates [[buffer(1)]], device const float* ups [[buffer(2)]],
                 device char* codes [[buffer(3)]], device half* halves [[buffer(4)]], device float* scales [[buffer(5)]],
                 device short2* sums [[buffer(6)]], device float* floats [[buffer(7)]],
                 device const float* factors [[buffer(8)]],
                 uint2 group [[threadgroup_position_in_grid]], uint lane [[thread_index_in_simdgroup]],
                 uint simdgroup [[simdgroup_index_in_threadgroup]]) {
  const uint units = p.width / 32, u = group.x * 8 + simdgroup, i = u * 32 + lane;
  if (u >= units) return;
  float g = gates[group.y * p.stride + i], up = ups[group.y * p.up_stride + i];
  if (p.scaled) {
    g = factors[group.y] * g;
    up = factors[group.y] * up;
  }
  float slope = g;
  if (p.kind == GELU) slope = GELU_SLOPE * fma(GELU_CUBIC * g * g, g, g);
  if (p.kind == CLAMPED) {
    g = min(g, CLAMPED_BOUND);
    up = max(min(up, CLAMPED_BOUND), -CLAMPED_BOUND) + 1.0f;
    slope = CLAMPED_SLOPE * g;
  }
  write_unit(g / (1.0f + precise::exp(-slope)) * up, group.y * units + u, lane, p.outputs, codes, halves, scales, sums, floats);
}

struct Heads {
  uint queries;      // heads
  uint keys;         // heads of keys, and of values
  uint width;        // of a head
  uint stride;       // of the rows of x and of the output
  uint slot;         // of row 0 in the cache
  uint values;       // offset of the values in the cache, in halves
  uint flags;
  float eps;
  uint rotated;      // elements of a head, from the first on
};
#define ROTATE 1
#define NEIGHBOURS 2      // pairs (2i, 2i + 1), else (i, i + rotated / 2)
#define NORM_QUERIES 4
#define NORM_KEYS 8
#define JOINT 16          // one norm over all heads of queries, and one over those of keys
#define FACTORS 32        // multiplies the queries of a row by its factor
#define NORM_VALUES 64    // without weights
#define VALUES_ARE_KEYS 128

// Rounds to a half, beyond their range to the largest one.
METAL_FUNC half to_half(float x) { return half(x > 65504.0f ? 65504.0f : x < -65504.0f ? -65504.0f : x); }

// Norms and rotates the heads of queries. Norms and rotates those of keys, and appends keys and values to the cache
// [slot, heads * width], as halves. A simdgroup takes a head of a row. Without JOINT, the queries stay in the input: the
// compiler assumes that no two buffers of a kernel overlap.
kernel void heads(constant Heads& p [[buffer(0)]], device float* x [[buffer(1)]], device float* queries [[buffer(2)]],
                  device const float* query_norm [[buffer(3)]], device const float* key_norm [[buffer(4)]],
                  device const float* cosines [[buffer(5)]], device const float* sines [[buffer(6)]],
                  device const float* factors [[buffer(7)]], device half* cache [[buffer(8)]],
                  uint2 group [[threadgroup_position_in_grid]], uint lane [[thread_index_in_simdgroup]]) {
  const uint head = group.x, row = group.y, pairs = p.width / 2, rotated = p.rotated / 2;
  const bool is_query = head < p.queries, is_value = head >= p.queries + p.keys;
  // First head of the same kind, and the number of this head in it.
  const uint kind = is_query ? 0 : p.queries, own = head - kind;
  device float* all = x + row * p.stride + kind * p.width;
  device float* from = all + own * p.width;
  device half* to = cache + (p.slot + row) * (p.keys * p.width);
  if (is_value) {
    to = to + p.values + (own - p.keys) * p.width;
    if (p.flags & VALUES_ARE_KEYS) from = all + (own - p.keys) * p.width;
    float value_scale = 1.0f;
    if (p.flags & NORM_VALUES) {
      float square = 0.0f;
      for (uint i = lane; i < p.width; i += 32) square = fma(from[i], from[i], square);
      value_scale = 1.0f / precise::sqrt(tree_sum(square) / float(p.width) + p.eps);
    }
    for (uint i = lane; i < p.width; i += 32) to[i] = to_half(from[i] * value_scale);
    return;
  }
  to = to + own * p.width;
  const bool norms = p.flags & (is_query ? NORM_QUERIES : NORM_KEYS), joint = p.flags & JOINT;
  device float* query = (joint ? queries : x) + row * p.stride + head * p.width;
  float scale = 1.0f;
  if (norms) {
    device const float* normed = joint ? all : from;
    const uint count = joint ? (is_query ? p.queries : p.keys) * p.width : p.width;
    float square = 0.0f;
    for (uint i = lane; i < count; i += 32) square = fma(normed[i], normed[i], square);
    scale = 1.0f / precise::sqrt(tree_sum(square) / float(count) + p.eps);
  }
  device const float* norm_weight = (is_query ? query_norm : key_norm) + (joint ? own * p.width : 0);
  const float factor = (p.flags & FACTORS) ? factors[row] : 1.0f;
  for (uint i = lane; i < pairs; i += 32) {
    // Elements after the rotated ones are neighbours.
    const bool halves = i < rotated && !(p.flags & NEIGHBOURS);
    const uint first = halves ? i : 2 * i, second = halves ? i + rotated : 2 * i + 1;
    float a = from[first], b = from[second];
    if (norms) {
      a = a * scale * norm_weight[first];
      b = b * scale * norm_weight[second];
    }
    if ((p.flags & ROTATE) && i < rotated) {
      const float c = cosines[row * rotated + i], s = sines[row * rotated + i], old = a;
      a = fma(old, c, -(b * s));
      b = fma(old, s, b * c);
    }
    if (is_query) {
      query[first] = a * factor;
      query[second] = b * factor;
    } else {
      to[first] = to_half(a);
      to[second] = to_half(b);
    }
  }
}

struct Copy {
  uint chunks;     // groups of 4 halves in a row
  uint count;      // rows
};

// Copies rows of a memory, from row `rows[2i]` to row `rows[2i + 1]`, in order.
kernel void copy_rows(constant Copy& p [[buffer(0)]], device const uint* rows [[buffer(1)]], device half4* memory [[buffer(2)]],
                      uint i [[thread_position_in_grid]]) {
  if (i >= p.chunks) return;
  for (uint r = 0; r < p.count; ++r) memory[rows[2 * r + 1] * p.chunks + i] = memory[rows[2 * r] * p.chunks + i];
}

// Copies `count` groups of 4 halves.
kernel void copy(constant Copy& p [[buffer(0)]], device const half4* from [[buffer(1)]], device half4* to [[buffer(2)]],
                 uint i [[thread_position_in_grid]]) {
  if (i < p.count) to[i] = from[i];
}
