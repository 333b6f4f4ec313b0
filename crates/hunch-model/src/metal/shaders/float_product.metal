// Products of float weights with float activations.
//
// A simdgroup sums weight rows. Each lane takes every 32nd group of 4 values, in order. A tree adds the lanes.
// Each activation row has sums of its own, so its bits do not depend on the other rows.
//
// The host defines ROWS, the activation rows of a threadgroup. They share each load of a weight.
#undef OWN_ROWS
#undef COLUMNS
#undef ROW_GROUPS
#undef SETS
#undef SUMS
#define OWN_ROWS (ROWS > 16 ? 16 : ROWS)          // of a simdgroup
#define COLUMNS (ROWS == 1 ? 1 : 4)               // of the output, of a simdgroup
#define ROW_GROUPS (ROWS / OWN_ROWS)
#define SETS ((ROWS > 4 ? 8 : 2) / ROW_GROUPS)    // of columns, of a threadgroup
#define SUMS (OWN_ROWS * COLUMNS)

METAL_FUNC void multiply(constant Product& p, device const void* low, device const uint* high, device const void* scales,
                         device const half2* supers, device const float* bias, device float* out,
                         device const void* codes, device const float* x_scales, device const short2* x_sums,
                         device const float4* x, threadgroup half* scratch, uint2 group, uint thread_index,
                         uint lane, uint simdgroup ROW_PARAMETERS) {
  device const Four* weights = (device const Four*)low;
  const uint chunks = p.k / 4, first = group.y * ROWS + simdgroup / SETS * OWN_ROWS;
  const uint own = simdgroup % SETS * COLUMNS, first_column = group.x * (SETS * COLUMNS);
  float sums[SUMS];
  #pragma clang loop unroll(full)
  for (uint i = 0; i < SUMS; ++i) sums[i] = 0.0f;
  for (uint start = 0; start < chunks; start += 32) {
    const uint at = start + lane;
#if ROWS > 16
    // Simdgroups that take other rows need the same weights.
    threadgroup float4* shared = (threadgroup float4*)scratch;
    threadgroup_barrier(mem_flags::mem_threadgroup);
    for (uint c = simdgroup; c < SETS * COLUMNS; c += 8)
      if (at < chunks) shared[c * 32 + lane] = widen(weights[min(first_column + c, p.n - 1) * chunks + at]);
    threadgroup_barrier(mem_flags::mem_threadgroup);
#endif
    if (at >= chunks) continue;
    float4 w[COLUMNS];
    #pragma clang loop unroll(full)
    for (uint c = 0; c < COLUMNS; ++c) {
#if ROWS > 16
      w[c] = shared[(own + c) * 32 + lane];
#else
      w[c] = widen(weights[min(first_column + own + c, p.n - 1) * chunks + at]);
#endif
    }
    #pragma clang loop unroll(full)
    for (uint m = 0; m < OWN_ROWS; ++m) {
      // Rows past the last one repeat it and are not written.
      const float4 value = x[INPUT_ROW(first + m) * chunks + at];
      #pragma clang loop unroll(full)
      for (uint c = 0; c < COLUMNS; ++c) {
        const uint i = m * COLUMNS + c;
        sums[i] = fma(w[c].w, value.w, fma(w[c].z, value.z, fma(w[c].y, value.y, fma(w[c].x, value.x, sums[i]))));
      }
    }
  }
  add_lanes<SUMS, 5>(sums, lane);
  #pragma clang loop unroll(full)
  for (uint i = 0; i < (SUMS > 32 ? SUMS / 32 : 1); ++i) {
    const uint sum = i * 32 + lane, row = first + sum / COLUMNS, column = first_column + own + sum % COLUMNS;
    if (sum < SUMS && HAS_ROW(row) && column < p.n) write_product(p, bias, out, OUTPUT_ROW(row), column, sums[i]);
  }
}
