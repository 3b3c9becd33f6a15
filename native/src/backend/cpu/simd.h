// The vector type that the CPU kernels are written over: F32, kLanes float32 values, and BF16, 2 * kLanes bfloat16
// values, with the same names on every instruction set.
//
//   QWEN3_SIMD_AVX512BF16  16 lanes, dot() is one vdpbf16ps
//   QWEN3_SIMD_AVX512      16 lanes
//   QWEN3_SIMD_AVX2         8 lanes
//   QWEN3_SIMD_SCALAR       4 lanes of the compiler's generic vectors (SSE2, NEON, or plain scalar code), no fused
//                           multiply-add
//
// Owns arithmetic only; knows no op. Included by kernel files alone, which are compiled once per instruction set with
// QWEN3_ISA naming the namespace, so that no inline function exists twice under one name with different flags. For the
// same reason nothing from std:: is used here.
//
// Invariants: every operation is exact IEEE float32 round-to-nearest per lane and the same in all files of one
// instruction set; the reductions use one fixed tree (halves folded onto each other). Functions ending in _n touch only
// the first n elements (0 <= n) and behave as if the others were zero. Pointers need no alignment beyond their type's.
// Pure functions; any thread.
#pragma once

#include <cstdint>

#include "base/bf16.h"

#if defined(QWEN3_SIMD_AVX512) || defined(QWEN3_SIMD_AVX2)
// g++ 12's own headers write `__m512 y = y;` for an undefined register and then warn about it (GCC bug 105593).
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wuninitialized"
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#include <immintrin.h>
#pragma GCC diagnostic pop
#endif

namespace qwen3::cpu::QWEN3_ISA {

#define QWEN3_INLINE [[gnu::always_inline]] inline

// ---- scalar forms with the vector forms' rounding; here so that kernels need no inline function of host headers
QWEN3_INLINE float to_float(bf16 x) {
  const uint32_t bits = static_cast<uint32_t>(x) << 16;
  float value;
  __builtin_memcpy(&value, &bits, sizeof value);
  return value;
}

QWEN3_INLINE bf16 to_bf16(float x) {
  uint32_t bits;
  __builtin_memcpy(&bits, &x, sizeof bits);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return static_cast<bf16>((bits >> 16) | 0x0040u);
  return static_cast<bf16>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

#if defined(QWEN3_SIMD_AVX512)
// =================================================================================================== 16 lanes
inline constexpr int kLanes = 16;

struct F32 {
  __m512 v;
};
struct Mask {
  __mmask16 v;
};
// 2 * kLanes bf16; lane i holds elements 2i (low half) and 2i + 1 (high half).
struct BF16 {
  __m512i v;
};

QWEN3_INLINE __mmask16 first_lanes(int n) {
  return n >= 16 ? static_cast<__mmask16>(0xffff) : static_cast<__mmask16>((1u << n) - 1u);
}

QWEN3_INLINE F32 zero() {
  return {_mm512_setzero_ps()};
}
QWEN3_INLINE F32 set1(float x) {
  return {_mm512_set1_ps(x)};
}
QWEN3_INLINE F32 load(const float* p) {
  return {_mm512_loadu_ps(p)};
}
QWEN3_INLINE F32 load_n(const float* p, int n) {
  return {_mm512_maskz_loadu_ps(first_lanes(n), p)};
}
QWEN3_INLINE void store(float* p, F32 a) {
  _mm512_storeu_ps(p, a.v);
}
QWEN3_INLINE void store_n(float* p, F32 a, int n) {
  _mm512_mask_storeu_ps(p, first_lanes(n), a.v);
}

QWEN3_INLINE F32 operator+(F32 a, F32 b) {
  return {_mm512_add_ps(a.v, b.v)};
}
QWEN3_INLINE F32 operator-(F32 a, F32 b) {
  return {_mm512_sub_ps(a.v, b.v)};
}
QWEN3_INLINE F32 operator*(F32 a, F32 b) {
  return {_mm512_mul_ps(a.v, b.v)};
}
QWEN3_INLINE F32 operator/(F32 a, F32 b) {
  return {_mm512_div_ps(a.v, b.v)};
}
QWEN3_INLINE F32 fma(F32 a, F32 b, F32 c) {
  return {_mm512_fmadd_ps(a.v, b.v, c.v)};
}
// When one operand is NaN the result is b.
QWEN3_INLINE F32 min(F32 a, F32 b) {
  return {_mm512_min_ps(a.v, b.v)};
}
QWEN3_INLINE F32 max(F32 a, F32 b) {
  return {_mm512_max_ps(a.v, b.v)};
}
QWEN3_INLINE F32 sqrt(F32 a) {
  return {_mm512_sqrt_ps(a.v)};
}

QWEN3_INLINE Mask less(F32 a, F32 b) {
  return {_mm512_cmp_ps_mask(a.v, b.v, _CMP_LT_OQ)};
}
QWEN3_INLINE Mask less_equal(F32 a, F32 b) {
  return {_mm512_cmp_ps_mask(a.v, b.v, _CMP_LE_OQ)};
}
QWEN3_INLINE Mask equal(F32 a, F32 b) {
  return {_mm512_cmp_ps_mask(a.v, b.v, _CMP_EQ_OQ)};
}
QWEN3_INLINE Mask is_nan(F32 a) {
  return {_mm512_cmp_ps_mask(a.v, a.v, _CMP_UNORD_Q)};
}
QWEN3_INLINE F32 select(Mask m, F32 yes, F32 no) {
  return {_mm512_mask_blend_ps(m.v, no.v, yes.v)};
}
QWEN3_INLINE uint32_t bits(Mask m) {
  return m.v;
}  // bit i = lane i

QWEN3_INLINE float reduce_add(F32 a) {
  const __m256 half = _mm256_add_ps(_mm512_castps512_ps256(a.v), _mm512_extractf32x8_ps(a.v, 1));
  const __m128 quarter = _mm_add_ps(_mm256_castps256_ps128(half), _mm256_extractf128_ps(half, 1));
  const __m128 pair = _mm_add_ps(quarter, _mm_movehl_ps(quarter, quarter));
  return _mm_cvtss_f32(_mm_add_ss(pair, _mm_movehdup_ps(pair)));
}
QWEN3_INLINE float reduce_max(F32 a) {
  const __m256 half = _mm256_max_ps(_mm512_castps512_ps256(a.v), _mm512_extractf32x8_ps(a.v, 1));
  const __m128 quarter = _mm_max_ps(_mm256_castps256_ps128(half), _mm256_extractf128_ps(half, 1));
  const __m128 pair = _mm_max_ps(quarter, _mm_movehl_ps(quarter, quarter));
  return _mm_cvtss_f32(_mm_max_ss(pair, _mm_movehdup_ps(pair)));
}

// Four reductions at once, each with the tree of reduce_add.
QWEN3_INLINE void reduce_add4(F32 a, F32 b, F32 c, F32 d, float* out) {  // out: [4]
  const __m512 ab = _mm512_add_ps(_mm512_shuffle_f32x4(a.v, b.v, 0x44), _mm512_shuffle_f32x4(a.v, b.v, 0xee));
  const __m512 cd = _mm512_add_ps(_mm512_shuffle_f32x4(c.v, d.v, 0x44), _mm512_shuffle_f32x4(c.v, d.v, 0xee));
  // 128-bit lane j: the four partial sums of argument j.
  const __m512 abcd = _mm512_add_ps(_mm512_shuffle_f32x4(ab, cd, 0x88), _mm512_shuffle_f32x4(ab, cd, 0xdd));
  const __m512 pairs = _mm512_add_ps(abcd, _mm512_permute_ps(abcd, 0x4e));
  const __m512 sums = _mm512_add_ps(pairs, _mm512_permute_ps(pairs, 0xb1));
  _mm_storeu_ps(out, _mm512_castps512_ps128(_mm512_maskz_compress_ps(0x1111, sums)));
}

// kLanes bf16, widened exactly.
QWEN3_INLINE F32 load_bf16(const bf16* p) {
  const __m256i raw = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
  return {_mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(raw), 16))};
}
QWEN3_INLINE F32 load_bf16_n(const bf16* p, int n) {
  const __m256i raw = _mm256_maskz_loadu_epi16(first_lanes(n), p);
  return {_mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(raw), 16))};
}
// Round to nearest even as to_bf16. Not vcvtneps2bf16: that flushes denormals, and then instruction sets would differ.
QWEN3_INLINE __m256i round_bf16(F32 a) {
  const __m512i raw = _mm512_castps_si512(a.v);
  const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(raw, 16), _mm512_set1_epi32(1));
  __m512i rounded = _mm512_srli_epi32(_mm512_add_epi32(raw, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff))), 16);
  const __m512i quiet = _mm512_or_si512(_mm512_srli_epi32(raw, 16), _mm512_set1_epi32(0x40));
  rounded = _mm512_mask_mov_epi32(rounded, is_nan(a).v, quiet);
  return _mm512_cvtepi32_epi16(rounded);
}
QWEN3_INLINE void store_bf16(bf16* p, F32 a) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), round_bf16(a));
}
QWEN3_INLINE void store_bf16_n(bf16* p, F32 a, int n) {
  _mm256_mask_storeu_epi16(p, first_lanes(n), round_bf16(a));
}

QWEN3_INLINE BF16 load_pairs(const bf16* p) {
  return {_mm512_loadu_si512(p)};
}
QWEN3_INLINE BF16 load_pairs_n(const bf16* p, int n) {
  const __mmask32 mask = n >= 32 ? ~__mmask32{0} : (__mmask32{1} << n) - 1u;
  return {_mm512_maskz_loadu_epi16(mask, p)};
}
// The pair p[0], p[1] in every lane.
QWEN3_INLINE BF16 broadcast_pair(const bf16* p) {
  int32_t pair;
  __builtin_memcpy(&pair, p, sizeof pair);
  return {_mm512_set1_epi32(pair)};
}
QWEN3_INLINE F32 even(BF16 a) {
  return {_mm512_castsi512_ps(_mm512_slli_epi32(a.v, 16))};
}
QWEN3_INLINE F32 odd(BF16 a) {
  return {_mm512_castsi512_ps(_mm512_and_si512(a.v, _mm512_set1_epi32(static_cast<int>(0xffff0000u))))};
}

// 2^n * a for integral n.
QWEN3_INLINE F32 scale_by_power(F32 a, F32 n) {
  return {_mm512_scalef_ps(a.v, n.v)};
}
QWEN3_INLINE F32 round_to_integer(F32 a) {
  return {_mm512_roundscale_ps(a.v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)};
}

#elif defined(QWEN3_SIMD_AVX2)
// ==================================================================================================== 8 lanes
inline constexpr int kLanes = 8;

struct F32 {
  __m256 v;
};
struct Mask {
  __m256 v;
};
struct BF16 {
  __m256i v;
};

QWEN3_INLINE __m256i first_lanes(int n) {
  return _mm256_cmpgt_epi32(_mm256_set1_epi32(n), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
}

QWEN3_INLINE F32 zero() {
  return {_mm256_setzero_ps()};
}
QWEN3_INLINE F32 set1(float x) {
  return {_mm256_set1_ps(x)};
}
QWEN3_INLINE F32 load(const float* p) {
  return {_mm256_loadu_ps(p)};
}
QWEN3_INLINE F32 load_n(const float* p, int n) {
  return {_mm256_maskload_ps(p, first_lanes(n))};
}
QWEN3_INLINE void store(float* p, F32 a) {
  _mm256_storeu_ps(p, a.v);
}
QWEN3_INLINE void store_n(float* p, F32 a, int n) {
  _mm256_maskstore_ps(p, first_lanes(n), a.v);
}

QWEN3_INLINE F32 operator+(F32 a, F32 b) {
  return {_mm256_add_ps(a.v, b.v)};
}
QWEN3_INLINE F32 operator-(F32 a, F32 b) {
  return {_mm256_sub_ps(a.v, b.v)};
}
QWEN3_INLINE F32 operator*(F32 a, F32 b) {
  return {_mm256_mul_ps(a.v, b.v)};
}
QWEN3_INLINE F32 operator/(F32 a, F32 b) {
  return {_mm256_div_ps(a.v, b.v)};
}
QWEN3_INLINE F32 fma(F32 a, F32 b, F32 c) {
  return {_mm256_fmadd_ps(a.v, b.v, c.v)};
}
// When one operand is NaN the result is b.
QWEN3_INLINE F32 min(F32 a, F32 b) {
  return {_mm256_min_ps(a.v, b.v)};
}
QWEN3_INLINE F32 max(F32 a, F32 b) {
  return {_mm256_max_ps(a.v, b.v)};
}
QWEN3_INLINE F32 sqrt(F32 a) {
  return {_mm256_sqrt_ps(a.v)};
}

QWEN3_INLINE Mask less(F32 a, F32 b) {
  return {_mm256_cmp_ps(a.v, b.v, _CMP_LT_OQ)};
}
QWEN3_INLINE Mask less_equal(F32 a, F32 b) {
  return {_mm256_cmp_ps(a.v, b.v, _CMP_LE_OQ)};
}
QWEN3_INLINE Mask equal(F32 a, F32 b) {
  return {_mm256_cmp_ps(a.v, b.v, _CMP_EQ_OQ)};
}
QWEN3_INLINE Mask is_nan(F32 a) {
  return {_mm256_cmp_ps(a.v, a.v, _CMP_UNORD_Q)};
}
QWEN3_INLINE F32 select(Mask m, F32 yes, F32 no) {
  return {_mm256_blendv_ps(no.v, yes.v, m.v)};
}
QWEN3_INLINE uint32_t bits(Mask m) {
  return static_cast<uint32_t>(_mm256_movemask_ps(m.v));
}  // bit i = lane i

QWEN3_INLINE float reduce_add(F32 a) {
  const __m128 half = _mm_add_ps(_mm256_castps256_ps128(a.v), _mm256_extractf128_ps(a.v, 1));
  const __m128 pair = _mm_add_ps(half, _mm_movehl_ps(half, half));
  return _mm_cvtss_f32(_mm_add_ss(pair, _mm_movehdup_ps(pair)));
}
QWEN3_INLINE float reduce_max(F32 a) {
  const __m128 half = _mm_max_ps(_mm256_castps256_ps128(a.v), _mm256_extractf128_ps(a.v, 1));
  const __m128 pair = _mm_max_ps(half, _mm_movehl_ps(half, half));
  return _mm_cvtss_f32(_mm_max_ss(pair, _mm_movehdup_ps(pair)));
}

// Four reductions at once, each with the tree of reduce_add.
QWEN3_INLINE void reduce_add4(F32 a, F32 b, F32 c, F32 d, float* out) {  // out: [4]
  const __m256 ab = _mm256_add_ps(_mm256_permute2f128_ps(a.v, b.v, 0x20), _mm256_permute2f128_ps(a.v, b.v, 0x31));
  const __m256 cd = _mm256_add_ps(_mm256_permute2f128_ps(c.v, d.v, 0x20), _mm256_permute2f128_ps(c.v, d.v, 0x31));
  // Lower half: two pairs of a, two of c; upper half: of b and d.
  const __m256 pairs = _mm256_add_ps(_mm256_shuffle_ps(ab, cd, 0x44), _mm256_shuffle_ps(ab, cd, 0xee));
  const __m256 sums = _mm256_add_ps(pairs, _mm256_movehdup_ps(pairs));  // even lanes: a, c | b, d
  const __m128 ac = _mm256_castps256_ps128(sums), bd = _mm256_extractf128_ps(sums, 1);
  const __m128 high = _mm_unpackhi_ps(ac, bd);  // c, d, ...
  _mm_storeu_ps(out, _mm_movelh_ps(_mm_unpacklo_ps(ac, bd), high));
}

// kLanes bf16, widened exactly.
QWEN3_INLINE F32 load_bf16(const bf16* p) {
  const __m128i raw = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
  return {_mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(raw), 16))};
}
QWEN3_INLINE F32 load_bf16_n(const bf16* p, int n) {
  bf16 padded[8] = {};
  for (int i = 0; i < 8 && i < n; i++) padded[i] = p[i];
  return load_bf16(padded);
}
QWEN3_INLINE __m128i round_bf16(F32 a) {
  const __m256i raw = _mm256_castps_si256(a.v);
  const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(raw, 16), _mm256_set1_epi32(1));
  const __m256i rounded =
      _mm256_srli_epi32(_mm256_add_epi32(raw, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff))), 16);
  const __m256i quiet = _mm256_or_si256(_mm256_srli_epi32(raw, 16), _mm256_set1_epi32(0x40));
  const __m256i chosen = _mm256_blendv_epi8(rounded, quiet, _mm256_castps_si256(is_nan(a).v));
  return _mm_packus_epi32(_mm256_castsi256_si128(chosen), _mm256_extracti128_si256(chosen, 1));
}
QWEN3_INLINE void store_bf16(bf16* p, F32 a) {
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p), round_bf16(a));
}
QWEN3_INLINE void store_bf16_n(bf16* p, F32 a, int n) {
  bf16 rounded[8];
  store_bf16(rounded, a);
  for (int i = 0; i < 8 && i < n; i++) p[i] = rounded[i];
}

QWEN3_INLINE BF16 load_pairs(const bf16* p) {
  return {_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p))};
}
QWEN3_INLINE BF16 load_pairs_n(const bf16* p, int n) {
  bf16 padded[16] = {};
  for (int i = 0; i < 16 && i < n; i++) padded[i] = p[i];
  return load_pairs(padded);
}
// The pair p[0], p[1] in every lane.
QWEN3_INLINE BF16 broadcast_pair(const bf16* p) {
  int32_t pair;
  __builtin_memcpy(&pair, p, sizeof pair);
  return {_mm256_set1_epi32(pair)};
}
QWEN3_INLINE F32 even(BF16 a) {
  return {_mm256_castsi256_ps(_mm256_slli_epi32(a.v, 16))};
}
QWEN3_INLINE F32 odd(BF16 a) {
  return {_mm256_castsi256_ps(_mm256_and_si256(a.v, _mm256_set1_epi32(static_cast<int>(0xffff0000u))))};
}

// 2^n * a for integral |n| <= 252; in two factors so that results near both ends of the range are right.
QWEN3_INLINE F32 scale_by_power(F32 a, F32 n) {
  const __m256i whole = _mm256_cvtps_epi32(n.v);
  const __m256i first = _mm256_srai_epi32(whole, 1);
  const __m256i second = _mm256_sub_epi32(whole, first);
  const __m256i bias = _mm256_set1_epi32(127);
  const __m256 x = _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(first, bias), 23));
  const __m256 y = _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(second, bias), 23));
  return {_mm256_mul_ps(_mm256_mul_ps(a.v, x), y)};
}
QWEN3_INLINE F32 round_to_integer(F32 a) {
  return {_mm256_round_ps(a.v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)};
}

#else
// ============================================================================ 4 lanes of the compiler's vectors
inline constexpr int kLanes = 4;

using Float4 [[gnu::vector_size(16)]] = float;
using Int4 [[gnu::vector_size(16)]] = int32_t;
using Word4 [[gnu::vector_size(16)]] = uint32_t;

struct F32 {
  Float4 v;
};
struct Mask {
  Int4 v;
};
struct BF16 {
  Word4 v;
};

QWEN3_INLINE F32 zero() {
  return {Float4{0, 0, 0, 0}};
}
QWEN3_INLINE F32 set1(float x) {
  return {Float4{x, x, x, x}};
}
QWEN3_INLINE F32 load(const float* p) {
  F32 a;
  __builtin_memcpy(&a.v, p, sizeof a.v);
  return a;
}
QWEN3_INLINE F32 load_n(const float* p, int n) {
  F32 a = zero();
  for (int i = 0; i < 4 && i < n; i++) a.v[i] = p[i];
  return a;
}
QWEN3_INLINE void store(float* p, F32 a) {
  __builtin_memcpy(p, &a.v, sizeof a.v);
}
QWEN3_INLINE void store_n(float* p, F32 a, int n) {
  for (int i = 0; i < 4 && i < n; i++) p[i] = a.v[i];
}

QWEN3_INLINE F32 operator+(F32 a, F32 b) {
  return {a.v + b.v};
}
QWEN3_INLINE F32 operator-(F32 a, F32 b) {
  return {a.v - b.v};
}
QWEN3_INLINE F32 operator*(F32 a, F32 b) {
  return {a.v * b.v};
}
QWEN3_INLINE F32 operator/(F32 a, F32 b) {
  return {a.v / b.v};
}
// Not fused: the C library's fma is a slow call where the processor has none.
QWEN3_INLINE F32 fma(F32 a, F32 b, F32 c) {
  return {a.v * b.v + c.v};
}
// When one operand is NaN the result is b.
QWEN3_INLINE F32 min(F32 a, F32 b) {
  return {a.v < b.v ? a.v : b.v};
}
QWEN3_INLINE F32 max(F32 a, F32 b) {
  return {a.v > b.v ? a.v : b.v};
}
QWEN3_INLINE F32 sqrt(F32 a) {
  for (int i = 0; i < 4; i++) a.v[i] = __builtin_sqrtf(a.v[i]);
  return a;
}

QWEN3_INLINE Mask less(F32 a, F32 b) {
  return {a.v < b.v};
}
QWEN3_INLINE Mask less_equal(F32 a, F32 b) {
  return {a.v <= b.v};
}
QWEN3_INLINE Mask equal(F32 a, F32 b) {
  return {a.v == b.v};
}
QWEN3_INLINE Mask is_nan(F32 a) {
  return {a.v != a.v};
}
QWEN3_INLINE F32 select(Mask m, F32 yes, F32 no) {
  return {m.v ? yes.v : no.v};
}
QWEN3_INLINE uint32_t bits(Mask m) {  // bit i = lane i
  return (m.v[0] ? 1u : 0u) | (m.v[1] ? 2u : 0u) | (m.v[2] ? 4u : 0u) | (m.v[3] ? 8u : 0u);
}

QWEN3_INLINE float reduce_add(F32 a) {
  return (a.v[0] + a.v[2]) + (a.v[1] + a.v[3]);
}
QWEN3_INLINE float reduce_max(F32 a) {
  const float x = a.v[0] > a.v[2] ? a.v[0] : a.v[2];
  const float y = a.v[1] > a.v[3] ? a.v[1] : a.v[3];
  return x > y ? x : y;
}

// Four reductions at once, each with the tree of reduce_add.
QWEN3_INLINE void reduce_add4(F32 a, F32 b, F32 c, F32 d, float* out) {  // out: [4]
  out[0] = reduce_add(a);
  out[1] = reduce_add(b);
  out[2] = reduce_add(c);
  out[3] = reduce_add(d);
}

// kLanes bf16, widened exactly.
QWEN3_INLINE F32 load_bf16(const bf16* p) {
  return {Float4{to_float(p[0]), to_float(p[1]), to_float(p[2]), to_float(p[3])}};
}
QWEN3_INLINE F32 load_bf16_n(const bf16* p, int n) {
  F32 a = zero();
  for (int i = 0; i < 4 && i < n; i++) a.v[i] = to_float(p[i]);
  return a;
}
QWEN3_INLINE void store_bf16(bf16* p, F32 a) {
  for (int i = 0; i < 4; i++) p[i] = to_bf16(a.v[i]);
}
QWEN3_INLINE void store_bf16_n(bf16* p, F32 a, int n) {
  for (int i = 0; i < 4 && i < n; i++) p[i] = to_bf16(a.v[i]);
}

QWEN3_INLINE uint32_t join_pair(bf16 low, bf16 high) {
  return static_cast<uint32_t>(low) | static_cast<uint32_t>(high) << 16;
}
QWEN3_INLINE BF16 load_pairs(const bf16* p) {
  return {Word4{join_pair(p[0], p[1]), join_pair(p[2], p[3]), join_pair(p[4], p[5]), join_pair(p[6], p[7])}};
}
QWEN3_INLINE BF16 load_pairs_n(const bf16* p, int n) {
  bf16 padded[8] = {};
  for (int i = 0; i < 8 && i < n; i++) padded[i] = p[i];
  return load_pairs(padded);
}
// The pair p[0], p[1] in every lane.
QWEN3_INLINE BF16 broadcast_pair(const bf16* p) {
  const uint32_t pair = join_pair(p[0], p[1]);
  return {Word4{pair, pair, pair, pair}};
}
QWEN3_INLINE F32 even(BF16 a) {
  const Word4 high = a.v << 16;
  F32 result;
  __builtin_memcpy(&result.v, &high, sizeof high);
  return result;
}
QWEN3_INLINE F32 odd(BF16 a) {
  const Word4 high = a.v & 0xffff0000u;
  F32 result;
  __builtin_memcpy(&result.v, &high, sizeof high);
  return result;
}

// 2^n * a for integral |n| <= 252; in two factors so that results near both ends of the range are right.
QWEN3_INLINE F32 scale_by_power(F32 a, F32 n) {
  const Int4 whole = __builtin_convertvector(n.v, Int4);
  const Int4 first = whole >> 1;
  const Int4 second = whole - first;
  const Int4 first_bits = (first + 127) << 23;
  const Int4 second_bits = (second + 127) << 23;
  Float4 x, y;
  __builtin_memcpy(&x, &first_bits, sizeof x);
  __builtin_memcpy(&y, &second_bits, sizeof y);
  return {a.v * x * y};
}
// For |a| < 2^22: adding and taking away 1.5 * 2^23 rounds to the nearest integer, ties to even.
QWEN3_INLINE F32 round_to_integer(F32 a) {
  const F32 magic = set1(12582912.0f);
  return (a + magic) - magic;
}

#endif
// ============================================================================================ all instruction sets

// acc[i] + a[2i] * b[2i] + a[2i + 1] * b[2i + 1] for the 2 * kLanes elements of a and b. Products of bf16 are exact in
// float32. vdpbf16ps flushes denormals, which no sum that matters here has.
QWEN3_INLINE F32 dot(F32 acc, BF16 a, BF16 b) {
#if defined(QWEN3_SIMD_AVX512BF16)
  // Bit casts between vector types of one size; the intrinsic's own type has no conversions in g++ 11 and 12.
  return {_mm512_dpbf16_ps(acc.v, (__m512bh)a.v, (__m512bh)b.v)};
#else
  return fma(odd(a), odd(b), fma(even(a), even(b), acc));
#endif
}

QWEN3_INLINE bool any(Mask m) {
  return bits(m) != 0;
}

// e^a within 1.1 ulp (measured over the whole range): 0 below -104,
// infinity above 88.73, NaN stays NaN, exp(0) == 1.
QWEN3_INLINE F32 exp(F32 a) {
  const F32 x = min(set1(89.0f), max(set1(-104.0f), a));
  const F32 n = round_to_integer(x * set1(1.44269504f));
  // ln 2 in two parts; the first has 10 bits, so that n times it is exact.
  F32 r = fma(n, set1(-0.693359375f), x);
  r = fma(n, set1(2.12194440e-4f), r);
  // Taylor series to r^7 / 7!: |r| <= ln(2)/2, so what is cut off is below 0.1 ulp.
  F32 p = set1(1.0f / 5040.0f);
  p = fma(p, r, set1(1.0f / 720.0f));
  p = fma(p, r, set1(1.0f / 120.0f));
  p = fma(p, r, set1(1.0f / 24.0f));
  p = fma(p, r, set1(1.0f / 6.0f));
  p = fma(p, r, set1(0.5f));
  p = fma(p, r * r, r) + set1(1.0f);
  return scale_by_power(p, n);
}

// a / (1 + e^-a)
QWEN3_INLINE F32 silu(F32 a) {
  return a / (set1(1.0f) + exp(zero() - a));
}

}  // namespace qwen3::cpu::QWEN3_ISA
