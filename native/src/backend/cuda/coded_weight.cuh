// A block of coded weights (kernels.h) in the registers of a warp, and its way back to bf16.
//
// Lane (g = lane / 4, q = lane % 4) holds 32 weights of the block, a[step][r] as mma.sync's operand A for columns
// 16 step .. 16 step + 15: in its low and its high half row g + 8 (r % 2), columns 2q and 2q + 1, + 8 (r / 2).
//
// A step's four weights of a row, j = 0, 1 those of its word r = 0 (row g) or 1 (g + 8), j = 2, 3 those of r = 2 or 3:
//   low bytes (the exponent's last bit and the mantissa): a word, from its low end those of j = 0, 2, 1, 3
//   codes: nibbles, in their lower three bits, from the low end of the step's word j = 2, 0, 3, 1 of row g, then of g +
//   8 signs: in that order, of row g in the top bits of the word's bytes, of row g + 8 four bits lower
// A code is a byte's number in 8 bytes, the upper bytes of bf16 that the row has. One permutation of bytes looks four
// of them up, one choice of bits adds their signs, and high and low bytes meet by one choice of bits for r = 0 or 1 and
// one permutation for r = 2 or 3: 11 instructions for 8 weights. Each costs the card 0.4 nJ, and it is at its power
// limit.
//
// Escape: bits 0 to 15 the weight, 16 which half, 17 to 20 step and r, 21 to 25 the lane; all bits set: none.
#pragma once

#include "backend/cuda/kernels.h"
#include "backend/cuda/ptx.cuh"

namespace qwen3::cuda {

inline constexpr uint32_t kSigns = 0x80808080, kCodes = 0x77777777;
inline constexpr uint32_t kNoEscape = 0xFFFFFFFF;

// The upper bytes that a row's codes stand for.
struct CodedRow {
  uint32_t low, high;  // of codes 0 to 3 and 4 to 7

  CodedRow() = default;
  __device__ __forceinline__ explicit CodedRow(uint8_t base)
      : low(base * 0x01010101u + 0x03020100u), high(low + 0x04040404u) {}
  // Of nibbles 0 to 3, whose top bits are 0. In assembly: __byte_perm() would clear them once more.
  __device__ __forceinline__ uint32_t bytes(uint32_t codes) const {
    uint32_t result;
    asm("prmt.b32 %0, %1, %2, %3;" : "=r"(result) : "r"(low), "r"(high), "r"(codes));
    return result;
  }
};

// What a lane needs of a block's rows and its own place, for the whole product.
struct CodedLane {
  int lane;
  CodedRow row_g, row_g8;

  CodedLane() = default;
  // bases: of the row tile.
  __device__ __forceinline__ CodedLane(const uint8_t* bases, int lane)
      : lane(lane), row_g(__ldg(bases + lane / 4)), row_g8(__ldg(bases + lane / 4 + 8)) {}
};

struct CodedBlock {
  uint4 values[2];  // low bytes of steps 0, 1 and 2, 3
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
    const uint32_t low_g = step % 2 == 0 ? v.x : v.z, low_g8 = step % 2 == 0 ? v.y : v.w;
    const uint32_t word = step == 0 ? codes.x : step == 1 ? codes.y : step == 2 ? codes.z : codes.w;
    const uint32_t code = word & kCodes;
    const uint32_t high_g = own.row_g.bytes(code) | (word & kSigns);
    const uint32_t high_g8 = own.row_g8.bytes(code >> 16) | (word << 4 & kSigns);
    a[0] = choose(low_g, high_g);
    a[1] = choose(low_g8, high_g8);
    a[2] = __byte_perm(low_g, high_g, 0x6341);
    a[3] = __byte_perm(low_g8, high_g8, 0x6341);
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
  // The first and third byte of `low`, the others of `high`. In assembly: the compiler would take `high` apart again.
  __device__ __forceinline__ static uint32_t choose(uint32_t low, uint32_t high) {
    uint32_t result;
    asm("lop3.b32 %0, %1, %2, %3, 0xE4;" : "=r"(result) : "r"(low), "r"(high), "r"(0x00FF00FF));
    return result;
  }
};

}  // namespace qwen3::cuda
