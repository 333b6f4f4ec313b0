// Arguments and output of a product. Included in front of the files that multiply, after cap.metal.

struct Product {
  uint n;        // weight rows
  uint k;
  uint rows;     // activation rows
  uint stride;   // of the output
  uint flags;
  float scale;   // of the sums, and of the rows of a table
  float cap;     // of the scaled sums, 0 for none
  uint groups;   // threadgroups, in the direction of the weight rows
};
#define FLAG_ADD 1    // adds to the output
#define FLAG_BIAS 2

// Rows of a threadgroup: those of the pass, or those that chose an expert, which a list names. A row of the input may
// have several entries of the list, `divide` in all.
#if defined(EXPERTS)
#define ROW_PARAMETERS , device const uint* ids, uint count, uint divide
#define INPUT_ROW(m) (ids[min(m, count - 1)] / divide)
#define OUTPUT_ROW(m) ids[m]
#define HAS_ROW(m) ((m) < count)
#else
#define ROW_PARAMETERS
#define INPUT_ROW(m) min(m, p.rows - 1)
#define OUTPUT_ROW(m) (m)
#define HAS_ROW(m) ((m) < p.rows)
#endif

METAL_FUNC void write_product(constant Product& p, device const float* bias, device float* out, uint row, uint column, float sum) {
  device float* to = out + row * p.stride + column;
  if (p.flags & FLAG_BIAS) sum = sum + bias[column];
  if (p.flags & FLAG_ADD) {
    *to = fma(p.scale, sum, *to);
    return;
  }
  sum = sum * p.scale;
  *to = p.cap > 0.0f ? soft_cap(sum, p.cap) : sum;
}

// Adds each of COUNT sums over 2^STEPS neighbouring lanes, in a tree. While several sums are left, a lane keeps every
// other one and gives the rest away. At the end, sums[i] of a lane is sum i * 2^STEPS + lane % 2^STEPS, if there is one.
template<uint COUNT, uint STEPS>
METAL_FUNC void add_lanes(thread float* sums, uint lane) {
  #pragma clang loop unroll(full)
  for (uint s = 0; s < STEPS; ++s) {
    const ushort step = 1 << s;
    if ((COUNT >> s) > 1) {
      const bool odd = lane & step;
      #pragma clang loop unroll(full)
      for (uint i = 0; i < (COUNT >> (s + 1)); ++i) {
        const float kept = odd ? sums[2 * i + 1] : sums[2 * i], given = odd ? sums[2 * i] : sums[2 * i + 1];
        sums[i] = kept + simd_shuffle_xor(given, step);
      }
    } else {
      sums[0] = sums[0] + simd_shuffle_xor(sums[0], step);
    }
  }
}
