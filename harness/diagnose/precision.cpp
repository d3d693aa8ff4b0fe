// SPDX-License-Identifier: Apache-2.0
// Right, but for rounding: the budget is computed again for a coarser format - of the result, of the accumulator, of what
// is sent - and must hold then.
#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cmath>

#include "harness/diagnose/hypothesis.hpp"

namespace shardcheck {
namespace {

// Significand bits that the rank's numbers need.
int significant_bits(const RankCase& rank) {
  int bits = 0;
  for (std::int64_t m = 0; m < rank.got().rows(); ++m) {
    for (std::int64_t d = 0; d < rank.got().cols(); ++d) {
      const double value = rank.got()(m, d);
      if (!rank.owned(m, d) || value == 0.0 || !std::isfinite(value)) continue;
      int exponent = 0;
      const auto digits = static_cast<std::uint64_t>(
          std::ldexp(std::abs(std::frexp(value, &exponent)), 53));
      bits = std::max(bits, 53 - std::countr_zero(digits));
    }
  }
  return bits;
}

// The sum of shares that were rounded to whole multiples of their largest number / (2^(bits - 1) - 1).
LocalValue quantised_sum(const SumOfRanks& sum, int bits, bool by_row) {
  SumOfRanks coarse = sum;
  const double levels = std::ldexp(1.0, bits - 1) - 1.0;
  for (Term& term : coarse.terms) {
    const std::int64_t rows = term.value.rows(), cols = term.value.cols();
    double overall = 0.0;
    for (const double v : term.value.values()) overall = std::max(overall, std::abs(v));
    for (std::int64_t m = 0; m < rows; ++m) {
      double largest = by_row ? 0.0 : overall;
      for (const double v : term.value.row(m))
        largest = by_row ? std::max(largest, std::abs(v)) : largest;
      for (std::int64_t d = 0; d < cols && largest > 0.0; ++d) {
        const double exact = term.value(m, d), level = std::nearbyint(exact / largest * levels);
        term.value(m, d) = level * largest / levels;
      }
    }
  }
  LocalValue value = coarse.combine(coarse.member_factors());
  // A share is rounded to its format once more before it is sent.
  for (std::int64_t i = 0; i < value.y.rows() * value.y.cols(); ++i) {
    for (std::size_t t = 0; t < coarse.terms.size(); ++t)
      value.budget.data()[i] += coarse.sent_roundoff * std::abs(coarse.terms[t].value.data()[i]);
  }
  return value;
}

// The sum of shares that were rounded to a coarser format before they were sent.
LocalValue rounded_shares(const SumOfRanks& sum, DType coarse) {
  SumOfRanks rounded = sum;
  for (Term& term : rounded.terms) {
    const std::vector<double> values = round_to(coarse, {term.value.rows(), term.value.cols()},
                                                {term.value.data(), term.value.values().size()})
                                           .to_f64();
    std::copy(values.begin(), values.end(), term.value.data());
  }
  return rounded.combine(rounded.member_factors());
}

// One number lies beyond its budget, and no other: a coarse format would have rounded them all.
bool one_wrong_number(const RankCase& rank) {
  const F64Matrix& y = rank.expected().y;
  std::int64_t beyond = 0;
  for (std::int64_t m = 0; m < y.rows(); ++m) {
    for (std::int64_t d = 0; d < y.cols(); ++d)
      if (rank.owned(m, d) && !(std::abs(rank.got()(m, d) - y(m, d)) <= rank.budget(m, d))) ++beyond;
  }
  return beyond == 1;
}

}  // namespace

void explain_precision(const RankCase& rank, Explanations& found) {
  if (!found.empty())
    return;  // a coarse format's budget is wide: it would hold nearly anything that has an explanation
  if (one_wrong_number(rank)) return;
  const FailedOp& op = rank.op();
  const LocalValue& y = rank.expected();
  const DType out = op.output().dtype();
  const int bits = significant_bits(rank);
  if (bits > 0 && bits < info(out).precision) {
    const double u = std::ldexp(1.0, -bits);
    LocalValue rounded{y.y, F64Matrix(y.y.rows(), y.y.cols()), {}};
    for (std::int64_t i = 0; i < y.y.rows() * y.y.cols(); ++i) {
      const double own = y.budget.rows() == 0 ? 0.0 : y.budget.data()[i];
      // Cut off rather than rounded costs up to twice as much.
      rounded.budget.data()[i] = own + 2.0 * u * std::abs(y.y.data()[i]);
    }
    found.test(
        "precision_too_low", rounded,
        fmt::format(
            "the numbers of rank {} need {} significant bits, {} has {}: they were rounded further",
            rank.rank(), bits, name(out), info(out).precision));
  }
  if (rank.sum() != nullptr && op.op().empty()) {
    for (const int levels : {8, 4}) {
      for (const bool by_row : {true, false})
        found.test("precision_too_low", quantised_sum(*rank.sum(), levels, by_row),
                   fmt::format("rank {} equals the sum of shares that were sent in {} bits",
                               rank.rank(), levels));
    }
  }
  if (rank.sum() != nullptr && op.op().empty()) {
    for (const DType coarse : {DType::f32, DType::f16, DType::bf16})
      found.test("precision_too_low", rounded_shares(*rank.sum(), coarse),
                 fmt::format("rank {} equals the sum of shares that were sent in {}", rank.rank(),
                             name(coarse)));
  }
  // Sums that are kept in a coarser format than the device states.
  for (const DType coarse : {DType::f32, DType::f16, DType::bf16}) {
    if (found.has("precision_too_low")) return;
    // No device sums f64 in 16 bits, and such a budget would hold any error of a percent.
    if (op.run().storage == DType::f64 && coarse != DType::f32) continue;
    std::optional<LocalValue> value;
    const double u = unit_roundoff(coarse);
    if (rank.sum() != nullptr) {
      SumOfRanks sum = *rank.sum();
      if (op.op().empty()) {
        for (Term& term : sum.terms) {
          for (std::int64_t i = 0; i < term.value.rows() * term.value.cols(); ++i)
            term.variance.data()[i] += static_cast<double>(sum.members.size()) *
                                       std::pow(u * term.value.data()[i], 2.0);
        }
        value = sum.combine(sum.member_factors());
      } else {
        const double ratio = u / unit_roundoff(op.arithmetic(Primitive::linear).accumulate);
        if (ratio <= 1.0) continue;
        for (Term& term : sum.terms) {
          for (std::int64_t i = 0; i < term.value.rows() * term.value.cols(); ++i)
            term.variance.data()[i] *= ratio * ratio;
        }
        value = sum.combine(sum.member_factors());
      }
    } else if (op.local() != nullptr) {
      value = rank.recompute([&](LocalCall& call, Instruction&, Config&) {
        const auto stated = call.arithmetic;
        call.arithmetic = [stated, coarse](Primitive primitive, DType storage) {
          Arithmetic other = stated(primitive, storage);
          if (unit_roundoff(coarse) > unit_roundoff(other.accumulate)) other.accumulate = coarse;
          return other;
        };
      });
    } else if (op.op() == "linear") {
      const double ratio = u / unit_roundoff(op.arithmetic(Primitive::linear).accumulate);
      if (ratio <= 1.0) continue;
      value = scaled(y, 1.0, 0.0);
      for (std::int64_t i = 0; i < y.y.rows() * y.y.cols(); ++i) {
        const double rounding = op.out_roundoff() * std::abs(y.y.data()[i]);
        value->budget.data()[i] = rounding + ratio * std::max(0.0, y.budget.data()[i] - rounding);
      }
    }
    if (value)
      found.test(
          "precision_too_low", *value,
          fmt::format("rank {} is as far off as sums in {} would be", rank.rank(), name(coarse)));
  }
}

}  // namespace shardcheck
