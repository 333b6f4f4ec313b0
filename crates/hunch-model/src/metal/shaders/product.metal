// Products of packed weights with activations of 8 bits, a scale for each 32.
//
// The sum of a unit of 32 weights is an integer below 2^24, exact in any order, in floats and in the matrix unit.
// Units are added in 8 partitions, unit index modulo 8, each in order. One tree adds the partitions. So the bits of
// a row do not depend on the kernel or on the number of rows.

// One activation row. A simdgroup takes 8 weight rows: a lane has a partition of two of them.
kernel void multiply_one(constant Product& p [[buffer(0)]], device const uint* low [[buffer(1)]], device const uint* high [[buffer(2)]],
                         device const UnitScale* scales [[buffer(3)]], device const half2* supers [[buffer(4)]],
                         device const char4* x [[buffer(5)]], device const float* x_scales [[buffer(6)]], device const short2* x_sums [[buffer(7)]],
                         device const float* bias [[buffer(8)]], device float* out [[buffer(9)]],
                         uint group [[threadgroup_position_in_grid]], uint lane [[thread_index_in_simdgroup]],
                         uint simdgroup [[simdgroup_index_in_threadgroup]]) {
  const uint units = p.k / 32, tile = group * 2 + simdgroup, part = lane % 8, row = lane / 8;
  if (tile * 8 >= p.n) return;
  float sums[2] = {0.0f, 0.0f};
  for (uint u = part; u < units; u += 8) {
    float4 values[8];
    #pragma clang loop unroll(full)
    for (uint v = 0; v < 8; ++v) values[v] = float4(x[u * 8 + v]);
    const float x_scale = x_scales[u];
    const float2 x_sum = float2(x_sums[u]);
    #pragma clang loop unroll(full)
    for (uint h = 0; h < 2; ++h) {
      const uint at = (tile * units + u) * 8 + row + 4 * h;
      float4 dots[2] = {float4(0.0f), float4(0.0f)};
      #pragma clang loop unroll(full)
      for (uint v = 0; v < 8; ++v) {
#if HIGH_WORDS > 0
        const uint high_bits = high[at * HIGH_WORDS + HIGH_WORD(v)];
#else
        const uint high_bits = 0;
#endif
        dots[v / 4] = fma(unpack(low[at * LOW_WORDS + LOW_WORD(v)], high_bits, v), values[v], dots[v / 4]);
      }
#if HALVES
      const float2 dot = float2((dots[0].x + dots[0].y) + (dots[0].z + dots[0].w), (dots[1].x + dots[1].y) + (dots[1].z + dots[1].w));
#else
      const float4 both = dots[0] + dots[1];
      const float2 dot = float2((both.x + both.y) + (both.z + both.w), 0.0f);
#endif
      sums[h] = fold(load_scales(scales, supers, tile, units, u, row + 4 * h), x_scale, dot, x_sum, sums[h]);
    }
  }
  #pragma clang loop unroll(full)
  for (uint h = 0; h < 2; ++h) {
    float sum = sums[h];
    for (ushort step = 1; step < 8; step *= 2) sum = sum + simd_shuffle_xor(sum, step);
    const uint column = tile * 8 + row + 4 * h;
    if (part == 0 && column < p.n) write_product(p, bias, out, 0, column, sum);
  }
}

// TILES * 8 activation rows. A threadgroup of 8 simdgroups takes 8 weight rows, a simdgroup has a partition of all.
// Weights are unpacked once, as halves, for all activation rows.
kernel void multiply_tiles(constant Product& p [[buffer(0)]], device const uint* low [[buffer(1)]], device const uint* high [[buffer(2)]],
                           device const UnitScale* scales [[buffer(3)]], device const half2* supers [[buffer(4)]],
                           device const half* x [[buffer(5)]], device const float* x_scales [[buffer(6)]], device const short2* x_sums [[buffer(7)]],
                           device const float* bias [[buffer(8)]], device float* out [[buffer(9)]],
                           threadgroup half* scratch [[threadgroup(0)]],
                           uint2 group [[threadgroup_position_in_grid]], uint thread_index [[thread_index_in_threadgroup]],
                           uint lane [[thread_index_in_simdgroup]], uint part [[simdgroup_index_in_threadgroup]]) {
  const uint units = p.k / 32, tile = group.x, first = group.y * (TILES * 8);
  threadgroup half* weights = scratch + part * 256;
  // Metal does not document which elements a lane holds. A matrix of indices shows it.
  threadgroup float* indices = (threadgroup float*)weights;
  for (uint i = lane; i < 64; i += 32) indices[i] = float(i);
  simdgroup_barrier(mem_flags::mem_threadgroup);
  simdgroup_float8x8 index;
  simdgroup_load(index, indices, 8);
  uint row[2], column[2];
  #pragma clang loop unroll(full)
  for (uint e = 0; e < 2; ++e) {
    const uint at = uint(index.thread_elements()[e]);
    row[e] = at / 8;
    column[e] = at % 8;
  }
  simdgroup_barrier(mem_flags::mem_threadgroup);

  float sums[TILES][2];
  #pragma clang loop unroll(full)
  for (uint t = 0; t < TILES; ++t) sums[t][0] = sums[t][1] = 0.0f;
  for (uint u = part; u < units; u += 8) {
    {
      const uint r = lane / 4, at = (tile * units + u) * 8 + r;
      #pragma clang loop unroll(full)
      for (uint j = 0; j < 2; ++j) {
        const uint v = (lane % 4) * 2 + j;
#if HIGH_WORDS > 0
        const uint high_bits = high[at * HIGH_WORDS + HIGH_WORD(v)];
#else
        const uint high_bits = 0;
#endif
        *(threadgroup half4*)(weights + r * 32 + 4 * v) = half4(unpack(low[at * LOW_WORDS + LOW_WORD(v)], high_bits, v));
      }
    }
    simdgroup_barrier(mem_flags::mem_threadgroup);
    simdgroup_half8x8 a[4];
    #pragma clang loop unroll(full)
    for (uint s = 0; s < 4; ++s) simdgroup_load(a[s], weights + s * 8, 32);
    const Scales w[2] = {load_scales(scales, supers, tile, units, u, row[0]), load_scales(scales, supers, tile, units, u, row[1])};
    #pragma clang loop unroll(full)
    for (uint t = 0; t < TILES; ++t) {
      device const half* from = x + (first + t * 8) * p.k + u * 32;
      simdgroup_float8x8 c[2] = {make_filled_simdgroup_matrix<float, 8, 8>(0.0f), make_filled_simdgroup_matrix<float, 8, 8>(0.0f)};
      #pragma clang loop unroll(full)
      for (uint s = 0; s < 4; ++s) {
        simdgroup_half8x8 b;
        simdgroup_load(b, from + s * 8, p.k, ulong2(0, 0), true);
        simdgroup_multiply_accumulate(c[HALVES ? s / 2 : 0], a[s], b, c[HALVES ? s / 2 : 0]);
      }
      #pragma clang loop unroll(full)
      for (uint e = 0; e < 2; ++e) {
        const uint at = (first + t * 8 + column[e]) * units + u;
        sums[t][e] = fold(w[e], x_scales[at], float2(c[0].thread_elements()[e], c[1].thread_elements()[e]), float2(x_sums[at]), sums[t][e]);
      }
    }
    simdgroup_barrier(mem_flags::mem_threadgroup);
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);
  threadgroup float* parts = (threadgroup float*)scratch;   // [partition 8][tile][row 8][column 8]
  #pragma clang loop unroll(full)
  for (uint t = 0; t < TILES; ++t) {
    #pragma clang loop unroll(full)
    for (uint e = 0; e < 2; ++e) parts[(part * TILES + t) * 64 + row[e] * 8 + column[e]] = sums[t][e];
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);
  if (thread_index < TILES * 64) {
    const uint t = thread_index / 64, r = thread_index % 64 / 8, c = thread_index % 8;
    float sum[8];
    #pragma clang loop unroll(full)
    for (uint i = 0; i < 8; ++i) sum[i] = parts[(i * TILES + t) * 64 + r * 8 + c];
    const float total = ((sum[0] + sum[1]) + (sum[2] + sum[3])) + ((sum[4] + sum[5]) + (sum[6] + sum[7]));
    const uint to = first + t * 8 + c, weight_row = tile * 8 + r;
    if (to < p.rows && weight_row < p.n) write_product(p, bias, out, to, weight_row, total);
  }
}

// Rows of a table: the embeddings of tokens. A simdgroup unpacks a unit.
kernel void take_rows(constant Product& p [[buffer(0)]], device const uint* low [[buffer(1)]], device const uint* high [[buffer(2)]],
                      device const UnitScale* scales [[buffer(3)]], device const half2* supers [[buffer(4)]],
                      device const uint* tokens [[buffer(5)]], device float* out [[buffer(6)]],
                      uint2 group [[threadgroup_position_in_grid]], uint lane [[thread_index_in_simdgroup]],
                      uint simdgroup [[simdgroup_index_in_threadgroup]]) {
  const uint units = p.k / 32, u = group.x * 8 + simdgroup, token = tokens[group.y];
  if (u >= units) return;
  const uint tile = token / 8, r = token % 8, at = (tile * units + u) * 8 + r, v = lane / 4;
#if HIGH_WORDS > 0
  const uint high_bits = high[at * HIGH_WORDS + HIGH_WORD(v)];
#else
  const uint high_bits = 0;
#endif
  const float code = unpack(low[at * LOW_WORDS + LOW_WORD(v)], high_bits, v)[lane % 4];
  const Scales w = load_scales(scales, supers, tile, units, u, r);
  const float scale = lane < 16 ? w.scale.x : w.scale.y, low_end = lane < 16 ? w.min.x : w.min.y;
  const float product = (w.d * scale) * code;
  out[group.y * p.k + u * 32 + lane] = (product + w.m * low_end) * p.scale;
}
