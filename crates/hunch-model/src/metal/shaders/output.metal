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
