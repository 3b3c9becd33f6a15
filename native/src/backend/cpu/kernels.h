// The CPU backend's kernels, one set per instruction set.
//
// Each op's source file (embed.cpp, rms_norm.cpp, linear.cpp, qk_norm_rope.cpp, attention.cpp, sample.cpp) is written
// once over the vector type of simd.h and compiled once per instruction set, inside namespace qwen3::cpu::QWEN3_ISA
// (scalar, avx2, avx512, avx512bf16). kernel_table.cpp, compiled the same way, gathers a set in a KernelTable; dispatch
// (cpu_ops.cpp) picks the best that the processor has. These files must not share inline functions with code that is
// compiled without their flags: the linker may keep the wrong copy.
#pragma once

#include "backend/cpu/thread_pool.h"
#include "ops/ops.h"

namespace qwen3::cpu {

struct KernelTable {
  const char* name;
  void (*embed)(const EmbedArgs&, ThreadPool&);
  void (*rope_angles)(const RopeAnglesArgs&, ThreadPool&);
  void (*rms_norm)(const RmsNormArgs&, ThreadPool&);
  void (*linear)(const LinearArgs&, ThreadPool&);
  void (*gate_up)(const GateUpArgs&, ThreadPool&);
  void (*qk_norm_rope)(const QkNormRopeArgs&, ThreadPool&);
  void (*attention)(const AttentionArgs&, ThreadPool&);
  void (*sample)(const SampleArgs&, ThreadPool&);
};

#define QWEN3_DECLARE_ISA(isa)                           \
  namespace isa {                                        \
  void embed(const EmbedArgs&, ThreadPool&);             \
  void rope_angles(const RopeAnglesArgs&, ThreadPool&);  \
  void rms_norm(const RmsNormArgs&, ThreadPool&);        \
  void linear(const LinearArgs&, ThreadPool&);           \
  void gate_up(const GateUpArgs&, ThreadPool&);          \
  void qk_norm_rope(const QkNormRopeArgs&, ThreadPool&); \
  void attention(const AttentionArgs&, ThreadPool&);     \
  void sample(const SampleArgs&, ThreadPool&);           \
  extern const KernelTable kTable;                       \
  }

QWEN3_DECLARE_ISA(scalar)
#if defined(__x86_64__)
QWEN3_DECLARE_ISA(avx2)
QWEN3_DECLARE_ISA(avx512)
QWEN3_DECLARE_ISA(avx512bf16)
#endif
#undef QWEN3_DECLARE_ISA

}  // namespace qwen3::cpu
