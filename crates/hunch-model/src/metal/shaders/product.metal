// Products of packed weights with activations of 8 bits, a scale for each 32.
//
// The sum of a unit of 32 weights is an integer below 2^24, exact in any order, in floats and in the matrix unit.
// Units are added in 8 partitions, unit index modulo 8, each in order. One tree adds the partitions. So the bits of
// a row do not depend on the kernel or on the number of rows.
//
// The host defines ROWS, the activation rows of a threadgroup: 1, 2, 4, 8, 16, 32 or 64.

#if ROWS <= 4
// Returns activations 8j .. 8j + 7 of a unit: codes of one row, or halves of several.
METAL_FUNC void load_activations(device const void* x, uint unit, uint j, thread float4* values) {
#if ROWS == 1
  const uint2 words = ((device const uint2*)x)[unit * 4 + j];
  // Codes with a sign become codes from 0 on, and back.
  values[0] = float4(bytes_minus(words.x ^ 0x80808080, 128));
  values[1] = float4(bytes_minus(words.y ^ 0x80808080, 128));
#else
  const uint4 words = ((device const uint4*)x)[unit * 4 + j];
  values[0] = float4(as_type<half4>(words.xy));
  values[1] = float4(as_type<half4>(words.zw));
#endif
}

// Adds the products of integers to a sum.
METAL_FUNC float add_products(float4 a, float4 b, float sum) {
  return fma(a.w, b.w, fma(a.z, b.z, fma(a.y, b.y, fma(a.x, b.x, sum))));
}

#undef SUMS
#define SUMS (ROWS * 2)   // of a lane

// Few activation rows. A simdgroup takes 8 weight rows: a lane has a partition of two of them. It loads and unpacks
// these weights once. Activation rows past the last one repeat it and are not written.
METAL_FUNC void multiply(constant Product& p, device const void* low, device const uint* high, device const void* scales,
                         device const half2* supers, device const float* bias, device float* out,
                         device const void* x, device const float* x_scales, device const short2* x_sums,
                         device const float4* x_floats, threadgroup half* scratch, uint2 group, uint thread_index,
                         uint lane, uint simdgroup ROW_PARAMETERS) {
  const uint units = p.k / 32, tile = group.x * 2 + simdgroup, part = lane % 8, row = lane / 8;
  if (tile * 8 >= p.n) return;
  float sums[SUMS];
  uint first_unit[ROWS];
  #pragma clang loop unroll(full)
  for (uint m = 0; m < ROWS; ++m) {
    sums[2 * m] = sums[2 * m + 1] = 0.0f;
    first_unit[m] = INPUT_ROW(m) * units;
  }
  for (uint u = part; u < units; u += 8) {
    const uint at = (tile * units + u) * 8 + row;
    const Codes codes[2] = {load_codes(low, high, at), load_codes(low, high, at + 4)};
    float2 dots[ROWS][2];
    #pragma clang loop unroll(full)
    for (uint m = 0; m < ROWS; ++m) dots[m][0] = dots[m][1] = float2(0.0f);
    #pragma clang loop unroll(full)
    for (uint j = 0; j < 4; ++j) {
      float4 weights[2][2];
      #pragma clang loop unroll(full)
      for (uint i = 0; i < 4; ++i) weights[i / 2][i % 2] = float4(unpack(codes[i / 2], 2 * j + i % 2));
      #pragma clang loop unroll(full)
      for (uint m = 0; m < ROWS; ++m) {
        float4 values[2];
        load_activations(x, first_unit[m] + u, j, values);
        #pragma clang loop unroll(full)
        for (uint h = 0; h < 2; ++h)
          dots[m][h][j / 2] = add_products(weights[h][1], values[1], add_products(weights[h][0], values[0], dots[m][h][j / 2]));
      }
    }
    #pragma clang loop unroll(full)
    for (uint h = 0; h < 2; ++h) {
      const Scales w = load_scales(scales, supers, tile, units, u, row + 4 * h);
      #pragma clang loop unroll(full)
      for (uint m = 0; m < ROWS; ++m) {
        const uint unit = first_unit[m] + u;
#if HALVES
        const float2 dot = dots[m][h];
#else
        const float2 dot = float2(dots[m][h].x + dots[m][h].y, 0.0f);
#endif
        sums[2 * m + h] = fold(w, x_scales[unit], dot, float2(x_sums[unit]), sums[2 * m + h]);
      }
    }
  }
  add_lanes<SUMS, 3>(sums, lane);
  const uint m = part / 2, column = tile * 8 + row + 4 * (part % 2);
  if (part < SUMS && column < p.n && HAS_ROW(m)) write_product(p, bias, out, OUTPUT_ROW(m), column, sums[0]);
}

#else
#undef TILES
#undef BANDS
#define TILES (ROWS / 8)   // of activation rows
#define BANDS 2            // tiles of weight rows

// More activation rows. A threadgroup of 8 simdgroups takes 16 weight rows, a simdgroup has a partition of all.
// Weights are loaded and unpacked once, as halves, for all activation rows.
METAL_FUNC void multiply(constant Product& p, device const void* low, device const uint* high, device const void* scales,
                         device const half2* supers, device const float* bias, device float* out,
                         device const void* x, device const float* x_scales, device const short2* x_sums,
                         device const float4* x_floats, threadgroup half* scratch, uint2 group, uint thread_index,
                         uint lane, uint part) {
  const uint units = p.k / 32, tiles = (p.n + 7) / 8, first = group.y * ROWS;
  threadgroup half* weights = scratch + part * (BANDS * 256);
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

  // A band past the last tile repeats it and is not written.
  uint tile[BANDS];
  float sums[BANDS][TILES][2];
  #pragma clang loop unroll(full)
  for (uint b = 0; b < BANDS; ++b) {
    tile[b] = min(group.x * BANDS + b, tiles - 1);
    #pragma clang loop unroll(full)
    for (uint t = 0; t < TILES; ++t) sums[b][t][0] = sums[b][t][1] = 0.0f;
  }
  for (uint u = part; u < units; u += 8) {
    #pragma clang loop unroll(full)
    for (uint b = 0; b < BANDS; ++b) {
      const uint r = lane / 4, v = lane % 4;
      half4 values[2];
      load_both_halves(low, high, (tile[b] * units + u) * 8 + r, v, values);
      threadgroup half4* to = (threadgroup half4*)(weights + b * 256 + r * 32);
      to[v] = values[0];
      to[v + 4] = values[1];
    }
    simdgroup_barrier(mem_flags::mem_threadgroup);
    simdgroup_half8x8 a[BANDS][4];
    Scales w[BANDS][2];
    #pragma clang loop unroll(full)
    for (uint b = 0; b < BANDS; ++b) {
      #pragma clang loop unroll(full)
      for (uint s = 0; s < 4; ++s) simdgroup_load(a[b][s], weights + b * 256 + s * 8, 32);
      w[b][0] = load_scales(scales, supers, tile[b], units, u, row[0]);
      w[b][1] = load_scales(scales, supers, tile[b], units, u, row[1]);
    }
    #pragma clang loop unroll(full)
    for (uint t = 0; t < TILES; ++t) {
      device const half* from = (device const half*)x + (first + t * 8) * p.k + u * 32;
      simdgroup_half8x8 values[4];
      #pragma clang loop unroll(full)
      for (uint s = 0; s < 4; ++s) simdgroup_load(values[s], from + s * 8, p.k, ulong2(0, 0), true);
      float x_scale[2];
      float2 x_sum[2];
      #pragma clang loop unroll(full)
      for (uint e = 0; e < 2; ++e) {
        const uint at = (first + t * 8 + column[e]) * units + u;
        x_scale[e] = x_scales[at];
        x_sum[e] = float2(x_sums[at]);
      }
      #pragma clang loop unroll(full)
      for (uint b = 0; b < BANDS; ++b) {
        simdgroup_float8x8 c[2] = {make_filled_simdgroup_matrix<float, 8, 8>(0.0f), make_filled_simdgroup_matrix<float, 8, 8>(0.0f)};
        #pragma clang loop unroll(full)
        for (uint s = 0; s < 4; ++s) simdgroup_multiply_accumulate(c[HALVES ? s / 2 : 0], a[b][s], values[s], c[HALVES ? s / 2 : 0]);
        #pragma clang loop unroll(full)
        for (uint e = 0; e < 2; ++e)
          sums[b][t][e] = fold(w[b][e], x_scale[e], float2(c[0].thread_elements()[e], c[1].thread_elements()[e]), x_sum[e], sums[b][t][e]);
      }
    }
    simdgroup_barrier(mem_flags::mem_threadgroup);
  }

  // Adds the partitions, one band after the other.
  threadgroup float* parts = (threadgroup float*)scratch;   // [partition 8][tile][row 8][column 8]
  #pragma clang loop unroll(full)
  for (uint b = 0; b < BANDS; ++b) {
    threadgroup_barrier(mem_flags::mem_threadgroup);
    #pragma clang loop unroll(full)
    for (uint t = 0; t < TILES; ++t) {
      #pragma clang loop unroll(full)
      for (uint e = 0; e < 2; ++e) parts[(part * TILES + t) * 64 + row[e] * 8 + column[e]] = sums[b][t][e];
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    for (uint at = thread_index; at < TILES * 64; at += 256) {
      const uint t = at / 64, r = at % 64 / 8, c = at % 8;
      float sum[8];
      #pragma clang loop unroll(full)
      for (uint i = 0; i < 8; ++i) sum[i] = parts[i * (TILES * 64) + at];
      const float total = ((sum[0] + sum[1]) + (sum[2] + sum[3])) + ((sum[4] + sum[5]) + (sum[6] + sum[7]));
      const uint to = first + t * 8 + c, weight_row = (group.x * BANDS + b) * 8 + r;
      if (to < p.rows && weight_row < p.n) write_product(p, bias, out, to, weight_row, total);
    }
  }
}
#endif
