// Packed weights, and how their codes are unpacked. Included in front of the files that read weights.
//
// A matrix is stored in tiles of 8 rows. A tile holds units of 32 weights: a unit of all 8 rows, then the next unit.
// The host defines the type: BITS of a code, OFFSET of the codes, and SCALES, the kind of scales. If codes select one
// of 16 values, CODES are those values, in place of the offset. FACTOR multiplies the scales and is a power of two.
//
// `weight = d * scale * value(code) + m * min`, where scale and min are integers of each half of a unit.
// A library may have this text several times, each in a namespace.
#include <metal_stdlib>
using namespace metal;

#define SCALES_HALF 0   // d for each unit
#define SCALES_PAIR 1   // d and m for each unit
#define SCALES_K4 2     // scale and min for each unit, d and m for 8 units
#define SCALES_K6 3     // two signed scales for each unit, d for 8 units
#define SCALES_K2 4     // two scales and two mins of 4 bits for each unit, d and m for 8 units
#define SCALES_UPPER 5  // d for each unit, the upper half of a float
#define SCALES_HALVES 6 // d for each half of a unit

#undef LOW_WORDS
#undef HIGH_WORDS
#undef LOW_WORD
#undef HIGH_WORD
#undef HALVES
#undef MINIMA
#if BITS == 8
#define LOW_WORDS 8
#elif BITS >= 4
#define LOW_WORDS 4
#else
#define LOW_WORDS 2
#endif
#if BITS == 6
#define HIGH_WORDS 2
#elif BITS == 5 || BITS == 3
#define HIGH_WORDS 1
#else
#define HIGH_WORDS 0
#endif

// Codes 4v .. 4v + 3 of a unit are in one word of its low bits, and in one word of its high bits.
#if BITS == 8
#define LOW_WORD(v) (v)
#elif BITS >= 4
#define LOW_WORD(v) ((v) & 3)
#else
#define LOW_WORD(v) ((v) & 1)
#endif
#define HIGH_WORD(v) (HIGH_WORDS == 2 ? (v) >> 2 : 0)

#if !defined(FACTOR)
#define FACTOR 1.0f
#endif

// Codes of a unit of a row.
struct Codes {
  uint low[LOW_WORDS];
#if HIGH_WORDS > 0
  uint high[HIGH_WORDS];
#endif
};

// Loads the codes of a unit of a row, by its number in the stream.
METAL_FUNC Codes load_codes(device const void* low, device const uint* high, uint at) {
  Codes out;
#if LOW_WORDS == 2
  const uint2 words = ((device const uint2*)low)[at];
  out.low[0] = words.x;
  out.low[1] = words.y;
#else
  #pragma clang loop unroll(full)
  for (uint i = 0; i < LOW_WORDS / 4; ++i) {
    const uint4 words = ((device const uint4*)low)[at * (LOW_WORDS / 4) + i];
    out.low[4 * i] = words.x;
    out.low[4 * i + 1] = words.y;
    out.low[4 * i + 2] = words.z;
    out.low[4 * i + 3] = words.w;
  }
#endif
#if HIGH_WORDS > 0
  #pragma clang loop unroll(full)
  for (uint i = 0; i < HIGH_WORDS; ++i) out.high[i] = high[at * HIGH_WORDS + i];
#endif
  return out;
}

#if defined(CODES)
constant half code_values[16] = {CODES};
#endif

// Returns four bytes minus an offset. A half with the upper bits of 0x6400 is 1024 and its other bits, which is faster
// than conversions of integers.
METAL_FUNC half4 bytes_minus(uint bytes, uint offset) {
  const half2 base = half2(half(1024 + offset));
  const half2 even = as_type<half2>((bytes & 0x00ff00ff) | 0x64006400) - base;
  const half2 odd = as_type<half2>(((bytes >> 8) & 0x00ff00ff) | 0x64006400) - base;
  return half4(even.x, odd.x, even.y, odd.y);
}

// Returns the values of codes 4v .. 4v + 3, which a half holds exactly.
METAL_FUNC half4 unpack(uint low, uint high, uint v) {
#if BITS == 8
  // Codes with a sign become codes from 0 on.
  const uint codes = low ^ 0x80808080;
#elif BITS >= 4
  uint codes = (low >> (4 * (v >> 2))) & 0x0f0f0f0f;
#else
  uint codes = (low >> (2 * (v >> 1))) & 0x03030303;
#endif
#if BITS == 6
  codes |= ((high >> (2 * (v & 3))) & 0x03030303) << 4;
#elif BITS == 5
  codes |= ((high >> v) & 0x01010101) << 4;
#elif BITS == 3
  codes |= ((high >> v) & 0x01010101) << 2;
#endif
#if defined(CODES)
  const uchar4 own = as_type<uchar4>(codes);
  return half4(code_values[own.x], code_values[own.y], code_values[own.z], code_values[own.w]);
#else
  return bytes_minus(codes, BITS == 8 ? 128 + OFFSET : OFFSET);
#endif
}

// Returns the values of codes 4v .. 4v + 3 of a unit.
METAL_FUNC half4 unpack(thread const Codes& codes, uint v) {
#if HIGH_WORDS > 0
  return unpack(codes.low[LOW_WORD(v)], codes.high[HIGH_WORD(v)], v);
#else
  return unpack(codes.low[LOW_WORD(v)], 0, v);
#endif
}

// Returns the values of codes 4v .. 4v + 3 of the unit with this number in the stream.
METAL_FUNC half4 load_values(device const void* low, device const uint* high, uint at, uint v) {
#if HIGH_WORDS > 0
  return unpack(((device const uint*)low)[at * LOW_WORDS + LOW_WORD(v)], high[at * HIGH_WORDS + HIGH_WORD(v)], v);
#else
  return unpack(((device const uint*)low)[at * LOW_WORDS + LOW_WORD(v)], 0, v);
#endif
}

// Loads the values of codes 4v .. 4v + 3 and of the codes 16 later. v is less than 4.
METAL_FUNC void load_both_halves(device const void* low, device const uint* high, uint at, uint v, thread half4* values) {
  device const uint* low_words = (device const uint*)low + at * LOW_WORDS;
  const uint first = low_words[LOW_WORD(v)], second = BITS == 8 ? low_words[LOW_WORD(v + 4)] : first;
#if HIGH_WORDS > 0
  const uint first_high = high[at * HIGH_WORDS], second_high = HIGH_WORDS == 2 ? high[at * HIGH_WORDS + 1] : first_high;
#else
  const uint first_high = 0, second_high = 0;
#endif
  values[0] = unpack(first, first_high, v);
  values[1] = unpack(second, second_high, v + 4);
}

#if SCALES == SCALES_HALF
typedef half UnitScale;
#elif SCALES == SCALES_UPPER
typedef ushort UnitScale;
#elif SCALES == SCALES_PAIR || SCALES == SCALES_HALVES
typedef half2 UnitScale;
#elif SCALES == SCALES_K6
typedef char2 UnitScale;
#else
typedef uchar2 UnitScale;
#endif

// Scales of one unit of one row.
struct Scales {
  float d;
  float m;
  float2 scale;
  float2 min;
};

// Loads the scales of unit u of row r of a tile.
METAL_FUNC Scales load_scales(device const void* scales, device const half2* supers, uint tile, uint units, uint u, uint r) {
  const UnitScale s = ((device const UnitScale*)scales)[(tile * units + u) * 8 + r];
  Scales out;
#if SCALES == SCALES_HALF
  out.d = float(s); out.m = 0.0f; out.scale = float2(1.0f); out.min = float2(0.0f);
#elif SCALES == SCALES_PAIR
  out.d = float(s.x); out.m = float(s.y); out.scale = float2(1.0f); out.min = float2(1.0f);
#elif SCALES == SCALES_UPPER
  out.d = as_type<float>(uint(s) << 16); out.m = 0.0f; out.scale = float2(1.0f); out.min = float2(0.0f);
#elif SCALES == SCALES_HALVES
  out.d = 1.0f; out.m = 0.0f; out.scale = float2(s); out.min = float2(0.0f);
#else
  const half2 super = supers[(tile * (units / 8) + u / 8) * 8 + r];
  out.d = float(super.x) * FACTOR; out.m = float(super.y);
#if SCALES == SCALES_K4
  out.scale = float2(float(s.x)); out.min = float2(float(s.y));
#elif SCALES == SCALES_K6
  out.scale = float2(s); out.min = float2(0.0f);
#else
  out.scale = float2(float(s.x & 15), float(s.y & 15)); out.min = float2(float(s.x >> 4), float(s.y >> 4));
#endif
#endif
  return out;
}

// True if a half of a unit has a scale of its own.
#define HALVES (SCALES == SCALES_K6 || SCALES == SCALES_K2 || SCALES == SCALES_HALVES)
#define MINIMA (SCALES == SCALES_PAIR || SCALES == SCALES_K4 || SCALES == SCALES_K2)

// Adds a unit to a sum. `dots` are sums of code times activation code of both halves, or the whole sum and 0;
// `sums` those of the activation codes. All are integers below 2^24, as are their sums, so they are exact.
METAL_FUNC float fold(Scales w, float x_scale, float2 dots, float2 sums, float sum) {
#if SCALES == SCALES_HALVES
  // These scales are no integers, so each half is added by itself.
  return fma(w.scale.y * x_scale, dots.y, fma(w.scale.x * x_scale, dots.x, sum));
#endif
#if HALVES
  const float dot = w.scale.x * dots.x + w.scale.y * dots.y;
#else
  const float dot = w.scale.x * dots.x;
#endif
  sum = fma(w.d * x_scale, dot, sum);
#if MINIMA
#if HALVES
  const float low = w.min.x * sums.x + w.min.y * sums.y;
#else
  const float low = w.min.x * (sums.x + sums.y);
#endif
  sum = fma(w.m * x_scale, low, sum);
#endif
  return sum;
}
