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

struct Rows {
  uint width;
  uint outputs;
  float eps;
  uint first;    // row of the input that is row 0 of the output
};

// RMS norm of a row: x / sqrt(mean(x^2) + eps) * weight. A threadgroup of 8 simdgroups takes a row.
kernel void norm(constant Rows& p [[buffer(0)]], device const float* x [[buffer(1)]], device const float* weight [[buffer(2)]],
                 device char* codes [[buffer(3)]], device half* halves [[buffer(4)]], device float* scales [[buffer(5)]],
                 device short2* sums [[buffer(6)]], device float* floats [[buffer(7)]], threadgroup float* scratch [[threadgroup(0)]],
                 uint row [[threadgroup_position_in_grid]], uint index [[thread_index_in_threadgroup]],
                 uint lane [[thread_index_in_simdgroup]], uint simdgroup [[simdgroup_index_in_threadgroup]]) {
  device const float* from = x + (p.first + row) * p.width;
  float square = 0.0f;
  for (uint i = index; i < p.width; i += 256) square = fma(from[i], from[i], square);
  square = tree_sum(square);
  if (lane == 0) scratch[simdgroup] = square;
  threadgroup_barrier(mem_flags::mem_threadgroup);
  const float total = ((scratch[0] + scratch[1]) + (scratch[2] + scratch[3])) + ((scratch[4] + scratch[5]) + (scratch[6] + scratch[7]));
  const float scale = 1.0f / precise::sqrt(total / float(p.width) + p.eps);
  const uint units = p.width / 32;
  for (uint u = simdgroup; u < units; u += 8) {
    const uint i = u * 32 + lane;
    write_unit(from[i] * scale * weight[i], row * units + u, lane, p.outputs, codes, halves, scales, sums, floats);
  }
}

// silu(gate) * up, where a row has its gates and then its ups, `width` each.
kernel void gate(constant Rows& p [[buffer(0)]], device const float* x [[buffer(1)]],
                 device char* codes [[buffer(2)]], device half* halves [[buffer(3)]], device float* scales [[buffer(4)]],
                 device short2* sums [[buffer(5)]], device float* floats [[buffer(6)]],
                 uint2 group [[threadgroup_position_in_grid]], uint lane [[thread_index_in_simdgroup]],
                 uint simdgroup [[simdgroup_index_in_threadgroup]]) {
  const uint units = p.width / 32, u = group.x * 8 + simdgroup, i = u * 32 + lane;
  if (u >= units) return;
  device const float* from = x + group.y * 2 * p.width;
  const float g = from[i], up = from[p.width + i];
  write_unit(g / (1.0f + precise::exp(-g)) * up, group.y * units + u, lane, p.outputs, codes, halves, scales, sums, floats);
}

struct Heads {
  uint queries;      // heads
  uint keys;         // heads of keys, and of values
  uint width;        // of a head
  uint stride;       // of the rows of x
  uint slot;         // of row 0 in the cache
  uint values;       // offset of the values in the cache, in halves
  uint flags;
  float eps;
};
#define ROTATE 1
#define NEIGHBOURS 2      // pairs (2i, 2i + 1), else (i, i + width / 2)
#define NORM_QUERIES 4
#define NORM_KEYS 8

// Norms and rotates the heads of queries in place. Norms and rotates those of keys, and appends keys and values to
// the cache [slot, heads * width], as halves. A simdgroup takes a head of a row.
kernel void heads(constant Heads& p [[buffer(0)]], device float* x [[buffer(1)]], device const float* query_norm [[buffer(2)]],
                  device const float* key_norm [[buffer(3)]], device const float* cosines [[buffer(4)]], device const float* sines [[buffer(5)]],
                  device half* cache [[buffer(6)]],
                  uint2 group [[threadgroup_position_in_grid]], uint lane [[thread_index_in_simdgroup]]) {
  const uint head = group.x, row = group.y, pairs = p.width / 2;
  device float* from = x + row * p.stride + head * p.width;
  const bool is_query = head < p.queries, is_value = head >= p.queries + p.keys;
  device half* to = cache + (p.slot + row) * (p.keys * p.width);
  if (is_value) {
    to = to + p.values + (head - p.queries - p.keys) * p.width;
    for (uint i = lane; i < p.width; i += 32) to[i] = half(from[i]);
    return;
  }
  if (!is_query) to = to + (head - p.queries) * p.width;
  float scale = 1.0f;
  const bool norms = p.flags & (is_query ? NORM_QUERIES : NORM_KEYS);
  if (norms) {
    float square = 0.0f;
    for (uint i = lane; i < p.width; i += 32) square = fma(from[i], from[i], square);
    scale = 1.0f / precise::sqrt(tree_sum(square) / float(p.width) + p.eps);
  }
  device const float* norm_weight = is_query ? query_norm : key_norm;
  for (uint i = lane; i < pairs; i += 32) {
    const uint first = (p.flags & NEIGHBOURS) ? 2 * i : i, second = (p.flags & NEIGHBOURS) ? 2 * i + 1 : i + pairs;
    float a = from[first], b = from[second];
    if (norms) {
      a = a * scale * norm_weight[first];
      b = b * scale * norm_weight[second];
    }
    if (p.flags & ROTATE) {
      const float c = cosines[row * pairs + i], s = sines[row * pairs + i], old = a;
      a = fma(old, c, -(b * s));
      b = fma(old, s, b * c);
    }
    if (is_query) {
      from[first] = a;
      from[second] = b;
    } else {
      to[first] = half(a);
      to[second] = half(b);
    }
  }
}

struct Copy {
  uint chunks;     // groups of 4 halves in a row
  uint count;      // rows
};

// Copies rows, from row `rows[2i]` to row `rows[2i + 1]`, in order. The rows may lie in the same memory.
kernel void copy_rows(constant Copy& p [[buffer(0)]], device const uint* rows [[buffer(1)]], device const half4* from [[buffer(2)]],
                      device half4* to [[buffer(3)]], uint i [[thread_position_in_grid]]) {
  if (i >= p.chunks) return;
  for (uint r = 0; r < p.count; ++r) to[rows[2 * r + 1] * p.chunks + i] = from[rows[2 * r] * p.chunks + i];
}

// Copies `count` groups of 4 halves.
kernel void copy(constant Copy& p [[buffer(0)]], device const half4* from [[buffer(1)]], device half4* to [[buffer(2)]],
                 uint i [[thread_position_in_grid]]) {
  if (i < p.count) to[i] = from[i];
}
