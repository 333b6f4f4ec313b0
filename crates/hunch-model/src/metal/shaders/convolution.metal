// Short gated convolution over the rows of a pass and the state before them. Follows rows.metal.

struct Convolution {
  uint width;
  uint outputs;
  uint rows;
  uint reach;    // earlier rows that a row reads
};
#define NO_ROW 0xffffffffu

// C * conv(B * x), where a row has B, C and x, `width` each. A simdgroup takes 32 channels of a row. The plan of a row
// lists the rows that it reads, the earliest first, and two places for its own. A number below `rows` is a row of the
// pass, a greater one a place of the state. Each reader multiplies rows of the pass again, so no row waits for another.
kernel void convolve(constant Convolution& p [[buffer(0)]], device const float* x [[buffer(1)]],
                     device const float* weights [[buffer(2)]], device const uint* plans [[buffer(3)]],
                     device float* state [[buffer(4)]], device char* codes [[buffer(5)]], device half* halves [[buffer(6)]],
                     device float* scales [[buffer(7)]], device short2* sums [[buffer(8)]], device float* floats [[buffer(9)]],
                     uint2 group [[threadgroup_position_in_grid]], uint lane [[thread_index_in_simdgroup]],
                     uint simdgroup [[simdgroup_index_in_threadgroup]]) {
  const uint units = p.width / 32, u = group.x * 8 + simdgroup, i = u * 32 + lane;
  if (u >= units) return;
  device const uint* plan = plans + group.y * (p.reach + 2);
  device const float* weight = weights + i * (p.reach + 1);
  float sum = 0.0f;
  for (uint j = 0; j < p.reach; ++j) {
    const uint at = plan[j];
    float value = 0.0f;
    if (at < p.rows) {
      device const float* row = x + at * 3 * p.width;
      value = row[i] * row[2 * p.width + i];
    } else if (at != NO_ROW) {
      value = state[(at - p.rows) * p.width + i];
    }
    sum = fma(value, weight[j], sum);
  }
  device const float* row = x + group.y * 3 * p.width;
  const float own = row[i] * row[2 * p.width + i];
  sum = fma(own, weight[p.reach], sum);
  for (uint j = p.reach; j < p.reach + 2; ++j) {
    if (plan[j] != NO_ROW) state[(plan[j] - p.rows) * p.width + i] = own;
  }
  write_unit(row[p.width + i] * sum, group.y * units + u, lane, p.outputs, codes, halves, scales, sums, floats);
}
