// SPDX-License-Identifier: Apache-2.0
// Activations and products of activations: exchanged operands, another function.
#include <fmt/format.h>

#include <cmath>
#include <functional>

#include "harness/diagnose/hypothesis.hpp"
#include "reference/blocks.hpp"
#include "sharded/op.hpp"

namespace shardcheck {
namespace {

using Function = std::function<double(double)>;
struct Named {
  const char* words;
  Function f;
};

double silu(double x) { return x / (1.0 + std::exp(-x)); }
double gelu_tanh(double x) {
  return 0.5 * x * (1.0 + std::tanh(std::sqrt(2.0 / M_PI) * (x + 0.044715 * x * x * x)));
}

std::vector<Named> functions() {
  return {{"no activation", [](double x) { return x; }},
          {"silu", silu},
          {"gelu (tanh)", gelu_tanh},
          {"gelu (erf)", [](double x) { return 0.5 * x * (1.0 + std::erf(x / std::sqrt(2.0))); }},
          {"gelu (sigmoid)", [](double x) { return x / (1.0 + std::exp(-1.702 * x)); }},
          {"relu", [](double x) { return std::max(x, 0.0); }},
          {"the sigmoid", [](double x) { return 1.0 / (1.0 + std::exp(-x)); }},
          {"tanh", [](double x) { return std::tanh(x); }}};
}

}  // namespace

void explain_functions(const RankCase& rank, Explanations& found) {
  const std::string_view op = rank.op().op();
  if (op != "gate" && op != "unary") return;
  const F64Matrix& x = rank.inputs()[0];
  // A few roundings of the accumulator and one of the output, as in harness/local.
  const Primitive primitive = op == "gate" ? Primitive::gate : Primitive::unary;
  const double u_acc = unit_roundoff(rank.op().arithmetic(primitive).accumulate);
  const double u = rank.op().out_roundoff(), lost = half_min_subnormal(rank.op().output().dtype());
  const auto each = [&](const std::function<double(std::int64_t)>& f) {
    LocalValue value{F64Matrix(x.rows(), x.cols()), F64Matrix(x.rows(), x.cols()), {}};
    for (std::int64_t i = 0; i < x.rows() * x.cols(); ++i) {
      value.y.data()[i] = f(i);
      value.budget.data()[i] = u * std::abs(value.y.data()[i]) +
                               4.0 * u_acc *
                                   std::max(std::abs(value.y.data()[i]), std::abs(x.data()[i])) +
                               lost;
    }
    return value;
  };
  const int r = rank.rank();
  if (op == "unary") {
    for (const Named& other : functions())
      found.test("wrong_function", each([&](std::int64_t i) { return other.f(x.data()[i]); }),
                 fmt::format("rank {} applies {}", r, other.words));
    return;
  }
  const F64Matrix& up = rank.inputs()[1];
  if (up.rows() != x.rows() || up.cols() != x.cols()) return;
  found.test("permuted_sections",
             each([&](std::int64_t i) { return silu(up.data()[i]) * x.data()[i]; }),
             fmt::format("rank {} takes gate for up and up for gate", r));
  found.test("operand_missing", each([&](std::int64_t i) { return silu(x.data()[i]); }),
             fmt::format("rank {} doesn't multiply with {}", r, rank.op().inputs()[1].name()));
  found.test("operand_missing", each([&](std::int64_t i) { return up.data()[i]; }),
             fmt::format("rank {} doesn't multiply with {}", r, rank.op().inputs()[0].name()));
  for (const Named& other : functions())
    found.test("wrong_function",
               each([&](std::int64_t i) { return other.f(x.data()[i]) * up.data()[i]; }),
               fmt::format("rank {} applies {} to {}", r, other.words, rank.op().inputs()[0].name()));
}

}  // namespace shardcheck
