// Soft cap of logits and attention scores. Included in front of the files that use it.
#include <metal_stdlib>
using namespace metal;

// cap * tanh(x / cap), by an exponential that may overflow.
METAL_FUNC float soft_cap(float x, float cap) {
  return cap * (1.0f - 2.0f / (1.0f + precise::exp(2.0f * (x / cap))));
}
