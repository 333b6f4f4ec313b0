// Rows of a table: the embeddings of tokens, times a factor.

#if defined(BITS)
// A simdgroup unpacks a unit.
kernel void take_rows(constant Product& p [[buffer(0)]], device const void* low [[buffer(1)]], device const uint* high [[buffer(2)]],
                      device const void* scales [[buffer(3)]], device const half2* supers [[buffer(4)]],
                      device const uint* tokens [[buffer(5)]], device float* out [[buffer(6)]],
                      uint2 group [[threadgroup_position_in_grid]], uint lane [[thread_index_in_simdgroup]],
                      uint simdgroup [[simdgroup_index_in_threadgroup]]) {
  const uint units = p.k / 32, u = group.x * 8 + simdgroup, token = tokens[group.y];
  if (u >= units) return;
  const uint tile = token / 8, r = token % 8, at = (tile * units + u) * 8 + r, v = lane / 4;
  const float code = float(load_values(low, high, at, v)[lane % 4]);
  const Scales w = load_scales(scales, supers, tile, units, u, r);
  const float scale = lane < 16 ? w.scale.x : w.scale.y, low_end = lane < 16 ? w.min.x : w.min.y;
  const float product = (w.d * scale) * code;
  out[group.y * p.k + u * 32 + lane] = (product + w.m * low_end) * p.scale;
}
#else
kernel void take_float_rows(constant Product& p [[buffer(0)]], device const Four* table [[buffer(1)]], device const uint* tokens [[buffer(2)]],
                            device float4* out [[buffer(3)]], uint2 position [[thread_position_in_grid]]) {
  const uint chunks = p.k / 4;
  if (position.x < chunks) out[position.y * chunks + position.x] = widen(table[tokens[position.y] * chunks + position.x]) * p.scale;
}
#endif
