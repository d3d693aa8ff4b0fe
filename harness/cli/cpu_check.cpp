// SPDX-License-Identifier: Apache-2.0
// The one file, beside main.cpp, that is compiled for any x86-64 (cmake/targets.cmake), since it runs before the CPU is known.
#include "harness/cli/cpu_check.hpp"

#include <cpuid.h>

#include <cstddef>
#include <iterator>

#include "harness/cli/cpu_features.hpp"

namespace shardcheck {
namespace {

bool has_bit(unsigned word, unsigned bit) { return (word & bit) != 0; }

}  // namespace

CpuFeatures cpu_features_present() {
  __builtin_cpu_init();
  CpuFeatures present = 0;
  const auto add = [&present](bool has, CpuFeatures feature) { present |= has ? feature : 0; };
  // The builtin knows whether the operating system saves the wide registers too.
  const bool avx = __builtin_cpu_supports("avx") != 0;
  add(__builtin_cpu_supports("sse4.2") != 0, cpu::kSse42);
  add(__builtin_cpu_supports("popcnt") != 0, cpu::kPopcnt);
  add(avx, cpu::kAvx);
  add(__builtin_cpu_supports("avx2") != 0, cpu::kAvx2);
  add(__builtin_cpu_supports("fma") != 0, cpu::kFma);
  add(__builtin_cpu_supports("bmi") != 0, cpu::kBmi);
  add(__builtin_cpu_supports("bmi2") != 0, cpu::kBmi2);
  add(__builtin_cpu_supports("avx512f") != 0, cpu::kAvx512f);
  add(__builtin_cpu_supports("avx512bw") != 0, cpu::kAvx512bw);
  add(__builtin_cpu_supports("avx512cd") != 0, cpu::kAvx512cd);
  add(__builtin_cpu_supports("avx512dq") != 0, cpu::kAvx512dq);
  add(__builtin_cpu_supports("avx512vl") != 0, cpu::kAvx512vl);
  // Not every compiler's builtin has these three: CPUID leaf 1 and 0x80000001, register c.
  unsigned a = 0, b = 0, c = 0, d = 0;
  if (__get_cpuid(1, &a, &b, &c, &d) != 0) {
    add(avx && has_bit(c, bit_F16C), cpu::kF16c);
    add(has_bit(c, bit_MOVBE), cpu::kMovbe);
  }
  if (__get_cpuid(0x80000001U, &a, &b, &c, &d) != 0) {
    add(has_bit(c, bit_LZCNT), cpu::kLzcnt);
  }
  return present;
}

std::string cpu_problem(CpuFeatures needed, CpuFeatures present) {
  const CpuFeatures missing = needed & ~present;
  if (missing == 0) {
    return {};
  }
  std::string names;
  for (std::size_t bit = 0; bit < std::size(cpu::kNames); ++bit) {
    if (has_bit(missing, 1U << bit)) {
      names += names.empty() ? "" : ", ";
      names += cpu::kNames[bit];
    }
  }
  return "this program was compiled for " SHARDCHECK_ARCH ", and this CPU lacks " + names +
         "; run it on a CPU that has them, or build it here with cmake -DSHARDCHECK_ARCH=native";
}

}  // namespace shardcheck
