// Products of float weights with float activations, and rows of a float table.
//
// A simdgroup sums one weight row: lane l takes every 32nd group of 4 values from l on, in order. A tree adds the
// lanes. Each activation row has sums of its own, so its bits do not depend on the other rows.

// Four weights. WEIGHTS is 16 for halves, 32 for floats, and 17 for bfloat16, read as the upper half of a float.
#if WEIGHTS == 16
typedef half4 Four;
METAL_FUNC float4 widen(Four w) { return float4(w); }
#elif WEIGHTS == 17
typedef ushort4 Four;
METAL_FUNC float4 widen(Four w) { return float4(as_type<float>(uint(w.x) << 16), as_type<float>(uint(w.y) << 16), as_type<float>(uint(w.z) << 16), as_type<float>(uint(w.w) << 16)); }
#else
typedef float4 Four;
METAL_FUNC float4 widen(Four w) { return w; }
#endif

#define ROWS 4

kernel void multiply_floats(constant Product& p [[buffer(0)]], device const Four* weights [[buffer(1)]], device const float4* x [[buffer(2)]],
                            device const float* bias [[buffer(3)]], device float* out [[buffer(4)]],
                            uint2 group [[threadgroup_position_in_grid]], uint lane [[thread_index_in_simdgroup]],
                            uint simdgroup [[simdgroup_index_in_threadgroup]]) {
  const uint column = group.x * 4 + simdgroup, first = group.y * ROWS, chunks = p.k / 4;
  if (column >= p.n) return;
  float4 sums[ROWS];
  #pragma clang loop unroll(full)
  for (uint m = 0; m < ROWS; ++m) sums[m] = float4(0.0f);
  for (uint i = lane; i < chunks; i += 32) {
    const float4 w = widen(weights[column * chunks + i]);
    #pragma clang loop unroll(full)
    for (uint m = 0; m < ROWS; ++m) {
      // Rows past the last one repeat it and are not written.
      sums[m] = fma(w, x[min(first + m, p.rows - 1) * chunks + i], sums[m]);
    }
  }
  #pragma clang loop unroll(full)
  for (uint m = 0; m < ROWS; ++m) {
    float sum = (sums[m].x + sums[m].y) + (sums[m].z + sums[m].w);
    for (ushort step = 1; step < 32; step *= 2) sum = sum + simd_shuffle_xor(sum, step);
    if (lane == 0 && first + m < p.rows) write_product(p, bias, out, first + m, column, sum);
  }
}

kernel void take_float_rows(constant Product& p [[buffer(0)]], device const Four* table [[buffer(1)]], device const uint* tokens [[buffer(2)]],
                            device float4* out [[buffer(3)]], uint2 position [[thread_position_in_grid]]) {
  const uint chunks = p.k / 4;
  if (position.x < chunks) out[position.y * chunks + position.x] = widen(table[tokens[position.y] * chunks + position.x]) * p.scale;
}
