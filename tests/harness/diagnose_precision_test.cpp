// SPDX-License-Identifier: Apache-2.0
// A coarse format must not be named for errors that it doesn't make.
#include <gmock/gmock.h>

#include "tests/harness/diagnosed_fault.hpp"

namespace shardcheck::testing {
namespace {

/// The first element of a value, off by a thousandth on one rank: within what sums in fp16 would explain.
MakeFault one_element_off(const std::string& tap) {
  return changing(
      {tap, {1}, {}, [](std::vector<double>& values, std::size_t, const KeptValues&, RankContext&) {
         values[0] *= 1.001;
       }});
}

// A format rounds all numbers: one wrong number among right ones is something else.
TEST(DiagnosePrecision, OneWrongElementIsNoCoarseFormat) {
  for (const char* tap :
       {"layers.1.input_layernorm", "layers.1.mlp.up_proj", "layers.1.mlp.down_proj.partial",
        "layers.1.self_attn.attn", "layers.1.mlp.act"}) {
    expect_cause({"tiny-llama", 2, DType::f32, Phase::prefill}, one_element_off(tap), tap,
                 "unexplained");
  }
}

}  // namespace
}  // namespace shardcheck::testing
