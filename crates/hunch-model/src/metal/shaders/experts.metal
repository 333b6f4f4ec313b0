// Choice of experts, and the sum of their outputs. Included after rows.metal.
//
// A row of a pass has `used` entries, one for each expert that it chose, highest score first. Products take the entries
// of an expert in blocks, so each of its weights is loaded once for a block. A row's choice and the order of its sum do
// not depend on the other rows.

struct Route {
  uint rows;
  uint experts;    // at most 256
  uint used;       // at most 32
  uint block;      // most entries of a block
  uint weighting;
  uint flags;
  float scale;     // of the weights
  uint groups;     // at most 32, 1 for none
  uint groups_used;
};
#define SOFTMAX 0             // over all experts
#define SOFTMAX_OF_CHOSEN 1
#define SIGMOID 2
#define HAS_BIAS 1            // a bias is added to the weights for the choice alone
#define NORMALISE 2           // the weights of a row are divided by their sum
#define HAS_FACTORS 4         // each expert has a factor of its weight
#define LEAST_SUM 6.103515625e-5f
#define EXPERTS_OF_LANE 8
#define NO_EXPERT 0xffffffff

// Returns a bit for each expert of a lane that is in none of the best groups. A group counts by its two highest ranks.
METAL_FUNC uint of_other_groups(constant Route& p, thread const float* rank, uint lane) {
  const uint size = p.experts / p.groups;
  // Lane g has the value of group g.
  float value = -INFINITY;
  for (uint g = 0; g < p.groups; ++g) {
    float first = -INFINITY, second = -INFINITY;
    #pragma clang loop unroll(full)
    for (uint i = 0; i < EXPERTS_OF_LANE; ++i) {
      const uint expert = i * 32 + lane;
      if (expert >= p.experts || expert / size != g) continue;
      second = max(second, min(first, rank[i]));
      first = max(first, rank[i]);
    }
    const float highest = simd_max(first);
    const uint holder = simd_min(first == highest ? lane : NO_EXPERT);
    const float next = simd_max(lane == holder ? second : first);
    if (lane == g) value = highest + next;
  }
  uint kept = 0;
  for (uint c = 0; c < p.groups_used; ++c) {
    const bool is_left = lane < p.groups && !(kept >> lane & 1);
    const float highest = simd_max(is_left ? value : -INFINITY);
    kept = kept | 1u << (simd_min(is_left && value == highest ? lane : NO_EXPERT) & 31);
  }
  uint others = 0;
  #pragma clang loop unroll(full)
  for (uint i = 0; i < EXPERTS_OF_LANE; ++i) {
    const uint group = (i * 32 + lane) / size;
    if (group < p.groups && !(kept >> group & 1)) others = others | 1 << i;
  }
  return others;
}

// Chooses the experts of a row, and their weights. A simdgroup takes a row, a lane every 32nd expert.
METAL_FUNC void choose_experts(constant Route& p, device const float* scores, device const float* bias, device const float* factors,
                               device uint* chosen, device float* weights, uint lane) {
  float weight[EXPERTS_OF_LANE], rank[EXPERTS_OF_LANE], top = -INFINITY, total = 0.0f;
  #pragma clang loop unroll(full)
  for (uint i = 0; i < EXPERTS_OF_LANE; ++i) {
    const uint expert = i * 32 + lane;
    if (expert < p.experts) top = max(top, scores[expert]);
  }
  top = simd_max(top);
  #pragma clang loop unroll(full)
  for (uint i = 0; i < EXPERTS_OF_LANE; ++i) {
    const uint expert = i * 32 + lane;
    weight[i] = 0.0f;
    rank[i] = -INFINITY;
    if (expert >= p.experts) continue;
    const float score = scores[expert];
    weight[i] = p.weighting == SIGMOID ? 1.0f / (1.0f + precise::exp(-score)) : precise::exp(score - top);
    total = total + weight[i];
    rank[i] = score;
  }
  total = tree_sum(total);
  #pragma clang loop unroll(full)
  for (uint i = 0; i < EXPERTS_OF_LANE; ++i) {
    const uint expert = i * 32 + lane;
    if (p.weighting == SOFTMAX) weight[i] = weight[i] / total;
    if (p.groups > 1 && expert < p.experts) rank[i] = weight[i];
    if ((p.flags & HAS_BIAS) && expert < p.experts) rank[i] = weight[i] + bias[expert];
    // A score that is no number comes last.
    if (!(rank[i] >= -INFINITY)) rank[i] = -INFINITY;
  }
  uint taken = p.groups > 1 ? of_other_groups(p, rank, lane) : 0, own_expert = 0;
  float own = 0.0f, sum = 0.0f;
  for (uint c = 0; c < p.used; ++c) {
    float best = -INFINITY, of_best = 0.0f;
    uint at = NO_EXPERT;
    #pragma clang loop unroll(full)
    for (uint i = 0; i < EXPERTS_OF_LANE; ++i) {
      const uint expert = i * 32 + lane;
      if (expert >= p.experts || (taken >> i & 1) || (at != NO_EXPERT && !(rank[i] > best))) continue;
      best = rank[i];
      of_best = weight[i];
      at = expert;
    }
    // The lowest of equal experts is taken.
    const float highest = simd_max(best);
    const uint expert = simd_min(at != NO_EXPERT && best == highest ? at : NO_EXPERT);
    if (expert == at) taken = taken | 1 << (at / 32);
    const float of_expert = simd_max(expert == at ? of_best : -INFINITY);
    sum = sum + of_expert;
    if (lane == c) {
      own = of_expert;
      own_expert = expert;
    }
    if (lane == 0) chosen[c] = expert;
  }
  if (p.weighting == SOFTMAX_OF_CHOSEN || (p.flags & NORMALISE)) own = own / max(sum, LEAST_SUM);
  if (lane < p.used) weights[lane] = own * p.scale * ((p.flags & HAS_FACTORS) ? factors[own_expert] : 1.0f);
}

// Chooses the experts of all rows, and lists their entries by expert in `order`. The first word of `blocks` is their
// number. Each block follows in four words: expert, first place in the list, number of entries, and an unused one.
// One threadgroup of 8 simdgroups does it all, with a thread for each expert.
kernel void route(constant Route& p [[buffer(0)]], device const float* scores [[buffer(1)]], device const float* bias [[buffer(2)]],
                  device const float* factors [[buffer(3)]],
                  device uint* chosen [[buffer(4)]], device float* weights [[buffer(5)]], device uint* order [[buffer(6)]],
                  device uint* blocks [[buffer(7)]], device uint* distinct_experts [[buffer(8)]], threadgroup uint* counts [[threadgroup(0)]],
                  uint expert [[thread_index_in_threadgroup]], uint lane [[thread_index_in_simdgroup]],
                  uint simdgroup [[simdgroup_index_in_threadgroup]]) {
  for (uint row = simdgroup; row < p.rows; row += 8)
    choose_experts(p, scores + row * p.experts, bias, factors, chosen + row * p.used, weights + row * p.used, lane);
  threadgroup_barrier(mem_flags::mem_device);
  const uint entries = p.rows * p.used;
  uint count = 0;
  for (uint i = 0; i < entries; ++i) count += chosen[i] == expert ? 1 : 0;
  counts[expert] = count;
  threadgroup_barrier(mem_flags::mem_threadgroup);
  uint first = 0, block = 0, distinct = 0;
  for (uint e = 0; e < expert; ++e) {
    first += counts[e];
    block += (counts[e] + p.block - 1) / p.block;
    distinct += counts[e] > 0 ? 1 : 0;
  }
  uint to = first;
  for (uint i = 0; i < entries; ++i) {
    if (chosen[i] != expert) continue;
    order[to] = i;
    ++to;
  }
  for (uint start = 0; start < count; start += p.block) {
    device uint* own = blocks + 4 * (1 + block);
    own[0] = expert;
    own[1] = first + start;
    own[2] = min(p.block, count - start);
    ++block;
  }
  if (expert == 255) {
    blocks[0] = block;
    *distinct_experts = distinct + (count > 0 ? 1 : 0);
  }
}

struct Join {
  uint width;
  uint used;
  uint flags;
  float scale;     // of the sum, if it is added
};
#define ADD 1              // adds to the output
#define SHARED 2           // an expert that all rows use comes last
#define SHARED_SCORE 4     // with the sigmoid of its score as its weight
#define UNWEIGHTED 8       // all weights of chosen experts are 1

// Sums the weighted outputs of the experts of each row, in the order of its choice.
kernel void join_experts(constant Join& p [[buffer(0)]], device const float* outputs [[buffer(1)]], device const float* weights [[buffer(2)]],
                         device const float* of_shared [[buffer(3)]], device const float* shared_scores [[buffer(4)]],
                         device float* out [[buffer(5)]], uint2 group [[threadgroup_position_in_grid]],
                         uint index [[thread_index_in_threadgroup]]) {
  const uint i = group.x * 256 + index, row = group.y;
  if (i >= p.width) return;
  float sum = 0.0f;
  for (uint c = 0; c < p.used; ++c) {
    const float weight = (p.flags & UNWEIGHTED) ? 1.0f : weights[row * p.used + c];
    sum = fma(weight, outputs[(row * p.used + c) * p.width + i], sum);
  }
  if (p.flags & SHARED) {
    const float weight = (p.flags & SHARED_SCORE) ? 1.0f / (1.0f + precise::exp(-shared_scores[row])) : 1.0f;
    sum = fma(weight, of_shared[row * p.width + i], sum);
  }
  device float* to = out + row * p.width + i;
  *to = (p.flags & ADD) ? fma(p.scale, sum, *to) : sum;
}
