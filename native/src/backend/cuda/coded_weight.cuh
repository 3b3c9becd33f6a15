// A block of coded weights (kernels.h) in the registers of a warp, and its way back to bf16.
//
// Lane (g = lane / 4, q = lane % 4) holds 32 weights of the block, a[step][r] as mma.sync's operand A for columns
// 16 step .. 16 step + 15: in its low and its high half row g + 8 (r % 2), columns 2q and 2q + 1, + 8 (r / 2).
//
// Signs and mantissas: a word for two r, with the bits of r = 0 or 2 where bf16 has them (0x807F in each half) and
// those of r = 1 or 3 in between, the bytes of each half exchanged. Codes: a word for a step, r's in bits 4 r .. 4 r +
// 3 of each half. So a pair of weights takes four instructions: mask, multiply-add (to its place, plus base), and
// exchange, and choose the bits.
//
// Escape: bits 0 to 15 the weight, 16 which half, 17 to 20 step and r, 21 to 25 the lane; all bits set: none.
#pragma once

#include "backend/cuda/kernels.h"
#include "backend/cuda/ptx.cuh"

namespace qwen3::cuda {

inline constexpr uint32_t kSignAndMantissa = 0x807F807F;
inline constexpr uint32_t kNoEscape = 0xFFFFFFFF;

// What a lane needs of a block's rows and its own place, for the whole product.
struct CodedLane {
  int lane;
  uint32_t base_g, base_g8;  // rows' bases, in the exponent's place of both halves

  CodedLane() = default;
  // bases: of the row tile.
  __device__ __forceinline__ CodedLane(const uint8_t* bases, int lane) : lane(lane) {
    base_g = __ldg(bases + lane / 4) * 0x00800080u;
    base_g8 = __ldg(bases + lane / 4 + 8) * 0x00800080u;
  }
};

struct CodedBlock {
  uint4 values[2];  // signs and mantissas of steps 0, 1 and 2, 3
  uint4 codes;
  uint32_t escape;  // one of the block's, the same in lanes l and l + 8

  // Shared addresses of the row tile's block and of its escapes.
  __device__ __forceinline__ void load(uint32_t block, uint32_t escapes, const CodedLane& own) {
    const uint32_t at = block + own.lane * 16;
    codes = shared_load_uint4(at + kCodesAt);
    values[0] = shared_load_uint4(at);
    values[1] = shared_load_uint4(at + 512);
    escape = shared_load(escapes + own.lane % kCodedEscapes * 4);
  }

  // All but escapes. Independent of each other, so that a caller can have products between them.
  template <int step>
  __device__ __forceinline__ void expand(const CodedLane& own, uint32_t (&a)[4]) const {
    const uint4& v = values[step / 2];
    const uint32_t v_01 = step % 2 == 0 ? v.x : v.z, v_23 = step % 2 == 0 ? v.y : v.w;
    const uint32_t low = step == 0 ? codes.x : step == 1 ? codes.y : step == 2 ? codes.z : codes.w, high = low >> 8;
    a[0] = join(v_01, exponents(low, 0x000F000F, 128, own.base_g));
    a[1] = join(__byte_perm(v_01, 0, 0x2301), exponents(low, 0x00F000F0, 8, own.base_g8));
    a[2] = join(v_23, exponents(high, 0x000F000F, 128, own.base_g));
    a[3] = join(__byte_perm(v_23, 0, 0x2301), exponents(high, 0x00F000F0, 8, own.base_g8));
  }
  // The words of escapes that there are, a bit each; asked for some time before put_escapes(), it costs nothing.
  __device__ __forceinline__ uint32_t escapes() const {
    return __ballot_sync(0xffffffffu, escape != kNoEscape) % (1u << kCodedEscapes);
  }
  __device__ __forceinline__ void put_escapes(uint32_t escapes, const CodedLane& own, uint32_t (&a)[4][4]) const {
    while (escapes != 0) {
      const uint32_t e = __shfl_sync(0xffffffffu, escape, __ffs(static_cast<int>(escapes)) - 1);
      escapes &= escapes - 1;
      // All lanes take the same way; the one that holds the weight exchanges two bytes of one word.
      const uint32_t bytes = static_cast<int>(e >> 21) != own.lane ? 0x3210 : (e >> 16 & 1) != 0 ? 0x5410 : 0x3254;
      const auto put = [&](uint32_t (&words)[4]) {
#pragma unroll
        for (uint32_t r = 0; r < 4; r++) words[r] = __byte_perm(words[r], e, (e >> 17 & 3) == r ? bytes : 0x3210);
      };
      switch (e >> 19 & 3) {
        case 0:
          put(a[0]);
          break;
        case 1:
          put(a[1]);
          break;
        case 2:
          put(a[2]);
          break;
        default:
          put(a[3]);
      }
    }
  }
  __device__ __forceinline__ void expand_all(const CodedLane& own, uint32_t (&a)[4][4]) const {
    const uint32_t found = escapes();
    expand<0>(own, a[0]);
    expand<1>(own, a[1]);
    expand<2>(own, a[2]);
    expand<3>(own, a[3]);
    put_escapes(found, own, a);
  }

 private:
  // In assembly, where the compiler would shift first and mask twice.
  __device__ __forceinline__ static uint32_t exponents(uint32_t codes, uint32_t mask, uint32_t to_place,
                                                       uint32_t base) {
    uint32_t result;
    asm("{\n.reg .b32 t;\nand.b32 t, %1, %2;\nmad.lo.u32 %0, t, %3, %4;\n}"
        : "=r"(result)
        : "r"(codes), "r"(mask), "r"(to_place), "r"(base));
    return result;
  }
  __device__ __forceinline__ static uint32_t join(uint32_t values, uint32_t exponents) {
    return (values & kSignAndMantissa) | exponents;
  }
};

}  // namespace qwen3::cuda
