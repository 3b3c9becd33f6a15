// Gathers one instruction set's kernels; compiled once per set, see kernels.h. Data only, no code runs here.
#include "backend/cpu/kernels.h"

#define QWEN3_STRING2(x) #x
#define QWEN3_STRING(x) QWEN3_STRING2(x)

namespace qwen3::cpu::QWEN3_ISA {

const KernelTable kTable = {
    QWEN3_STRING(QWEN3_ISA), embed, rope_angles, rms_norm, linear, gate_up, qk_norm_rope, attention, sample,
};

}  // namespace qwen3::cpu::QWEN3_ISA
