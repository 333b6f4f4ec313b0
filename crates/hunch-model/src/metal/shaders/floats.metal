// Float weights, and how they are read. Included in front of the files that read them.
#include <metal_stdlib>
using namespace metal;

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
