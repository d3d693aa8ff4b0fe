// SPDX-License-Identifier: Apache-2.0
// Kind N: numbers that are right but for their rounding, which is coarser than the device and the run state.
#include <algorithm>
#include <cmath>

#include "harness/faults/anatomy.hpp"
#include "harness/faults/kinds.hpp"
#include "harness/faults/tensors.hpp"
#include "sharded/collectives.hpp"

namespace shardcheck::faults {
namespace {

int significand_bits(DType dtype) {
  switch (dtype) {
    case DType::f64:
      return 53;
    case DType::f32:
      return 24;
    case DType::f16:
      return 11;
    default:
      return 8;
  }
}

double with_bits(double value, int bits) {
  if (value == 0.0 || !std::isfinite(value)) return value;
  int exponent = 0;
  const double fraction = std::frexp(value, &exponent);
  return std::ldexp(std::nearbyint(std::ldexp(fraction, bits)), exponent - bits);
}

/// Ops that round.
std::vector<std::string> rounding_ops(const Program& program, Phase phase) {
  return sites(program, phase, [](const Program&, const Instruction& i) {
    return is_op(i, "linear") || is_norm(i) || is_op(i, "rope") || is_op(i, "attention") ||
           is_op(i, "gate") || is_op(i, "unary");
  });
}

/// One number can't tell, where many can by their mean: rows of all tokens, and not of a few that the rank owns.
bool many_numbers(const Program& program, const Spot& spot) {
  const Instruction& site = *at_site(program, spot.phase, spot.place);
  const Layout& layout = program.value(site.outputs[0]).layout;
  return layout.row_axes.empty() && layout.local_features(spot.rank) >= 32;
}

/// The output keeps five bits less than its format.
std::optional<Planted> coarser_output(const Program& program, const Spot& spot) {
  if (!many_numbers(program, spot)) return std::nullopt;
  return change_output(spot.place, {spot.rank},
                       [](RankContext& context, const Instruction&, std::vector<Tensor>& outputs) {
                         const int bits = significand_bits(outputs[0].dtype) - 5;
                         outputs[0] = changed(context, outputs[0], [bits](auto values, auto) {
                           for (double& value : values) value = with_bits(value, bits);
                         });
                       });
}

/// The products of a linear are summed in the storage format, eight at a time.
std::optional<Planted> accumulated_in_storage(const Program& program, const Spot& spot) {
  const Instruction& site = *at_site(program, spot.phase, spot.place);
  if (site.adds_bias || !many_numbers(program, spot) ||
      program.value(site.inputs[0]).layout.local_features(spot.rank) < 32)
    return std::nullopt;
  return execute_instead(
      spot.place, {spot.rank},
      [](RankContext& context, const Instruction& i, const std::vector<Tensor>& inputs) {
        const Tensor weight = context.weight(i.module + ".weight");
        const DType storage = context.settings().storage;
        Device& device = context.device();
        Tensor sum;
        for (std::int64_t at = 0; at < weight.cols; at += 8) {
          const std::int64_t end = std::min(at + 8, weight.cols);
          const Tensor part = device.allocate(context.stream(), storage, inputs[0].rows, weight.rows);
          device.linear(context.stream(), inputs[0].col_range(at, end), weight.col_range(at, end),
                        nullptr, part);
          sum = sum ? sum_of(context, sum, part) : part;
        }
        const Tensor out = context.allocate(i.outputs[0]);
        device.cast(context.stream(), sum, out);
        return std::vector<Tensor>{out};
      });
}

/// Values are cut off, not rounded to nearest.
std::optional<Planted> truncated(const Program& program, const Spot& spot) {
  const Instruction& site = *at_site(program, spot.phase, spot.place);
  if (program.value(site.outputs[0]).dtype != ValueDType::storage) return std::nullopt;
  if (!many_numbers(program, spot)) return std::nullopt;
  return execute_instead(
      spot.place, {spot.rank},
      [](RankContext& context, const Instruction& i, const std::vector<Tensor>& inputs) {
        const Tensor out = context.allocate(i.outputs[0]);
        const Tensor exact = context.device().allocate(
            context.stream(), accumulate_dtype(out.dtype), out.rows, out.cols);
        context.device().linear(context.stream(), inputs[0], context.weight(i.module + ".weight"),
                                i.adds_bias ? &context.weight(i.module + ".bias") : nullptr, exact);
        const int bits = significand_bits(out.dtype);
        const Tensor cut = changed(context, exact, [bits](auto values, auto) {
          for (double& value : values) {
            if (value == 0.0 || !std::isfinite(value)) continue;
            int exponent = 0;
            const double fraction = std::frexp(value, &exponent);
            value = std::ldexp(std::trunc(std::ldexp(fraction, bits)), exponent - bits);
          }
        });
        context.device().cast(context.stream(), cut, out);
        return std::vector<Tensor>{out};
      });
}

/// What goes into a sum is one of 15 levels of the row's largest value.
std::optional<Planted> quantised_sum(const Program& program, const Spot& spot) {
  return execute_instead(
      spot.place, everyone(program),
      [](RankContext& context, const Instruction& i, const std::vector<Tensor>& inputs) {
        const Tensor coarse = changed(
            context, inputs[0], [](std::span<double> values, std::int64_t cols) {
              for (std::size_t at = 0; at < values.size(); at += static_cast<std::size_t>(cols)) {
                const auto row = values.subspan(at, static_cast<std::size_t>(cols));
                double largest = 0.0;
                for (const double value : row) largest = std::max(largest, std::abs(value));
                if (largest == 0.0) continue;
                for (double& value : row)
                  value = std::nearbyint(value / largest * 7.0) * largest / 7.0;
              }
            });
        return std::vector<Tensor>{run_collective(i, context, coarse)};
      });
}

}  // namespace

std::vector<Fault> precision() {
  std::vector<Fault> all;
  const std::vector<FaultGate> half{FaultGate::bf16, FaultGate::fp16};
  const auto linears = [](const Program& p, Phase phase) {
    return sites(p, phase, [](const Program&, const Instruction& i) { return is_op(i, "linear"); });
  };
  all.push_back({.name = "five_bits_less",
                 .kind = 'N',
                 .source = "pytorch/pytorch #106395",
                 .what = "one rank's op keeps five bits less than its format has",
                 .layer = FaultLayer::precision,
                 .cause = "precision_too_low",
                 .places = rounding_ops,
                 .plant = coarser_output});
  all.push_back({.name = "accumulated_in_storage",
                 .kind = 'N',
                 .source = "RL-Align/RL-Kernel #313",
                 .what = "one rank sums a linear's products in the storage format",
                 .layer = FaultLayer::precision,
                 .cause = "precision_too_low",
                 .jobs = half,
                 .places = linears,
                 .plant = accumulated_in_storage});
  all.push_back(
      {.name = "truncated",
       .kind = 'N',
       .source = "sgl-project/sglang #36143",
       .what = "one rank cuts a linear's results off where they must be rounded to nearest",
       .layer = FaultLayer::precision,
       .cause = "precision_too_low",
       .jobs = half,
       .places = linears,
       .plant = truncated});
  all.push_back({.name = "quantised_sum",
                 .kind = 'N',
                 .source = "vllm-project/vllm #39783",
                 .what = "ranks send four bits a number into a sum",
                 .layer = FaultLayer::precision,
                 .cause = "precision_too_low",
                 .any_rank = false,
                 .places =
                     [](const Program& p, Phase phase) {
                       return sites(p, phase, [](const Program& q, const Instruction& i) {
                         const Instruction* from = i.op != nullptr
                                                       ? nullptr
                                                       : producer(q, Phase::prefill, i.inputs[0]);
                         return is_collective(i, CollectiveStep::Kind::all_reduce) && sums(i) &&
                                from != nullptr && is_op(*from, "linear");
                       });
                     },
                 .plant = quantised_sum});
  return all;
}

}  // namespace shardcheck::faults
