// SPDX-License-Identifier: Apache-2.0
#include "harness/yardstick.hpp"

#include <algorithm>

#include "sharded/op.hpp"

namespace shardcheck {
namespace {

class SplitSums final : public Interposer {
 public:
  explicit SplitSums(const Program& plan) : plan_(plan) {}

  bool replace(RankContext& context, const Instruction& instruction,
               const std::vector<Tensor>& inputs, std::vector<Tensor>& outputs) override {
    if (instruction.op == nullptr || instruction.op->name() != "linear") return false;
    const std::vector<Ranges> parts = column_parts(instruction.module);
    if (parts.size() < 2) return false;
    Device& device = context.device();
    Stream& stream = context.stream();
    const RunSettings& settings = context.settings();
    const Tensor& weight = context.weight(instruction.module + ".weight");
    const std::int64_t rows = inputs[0].rows, features = weight.rows;
    std::vector<Tensor> terms;
    for (const Ranges& part : parts) {
      terms.push_back(device.allocate(stream, settings.wire, rows, features));
      device.linear(stream, columns(context, inputs[0], part), columns(context, weight, part),
                    nullptr, terms.back());
    }
    const Tensor sum = device.allocate(stream, settings.wire, rows, features);
    device.reduce_n(stream, terms, settings.reduction, 0, sum.elements(), sum);
    Tensor out = device.allocate(stream, settings.storage, rows, features);
    device.cast(stream, sum, out);
    if (instruction.adds_bias) {
      const Tensor reduced = out;
      out = device.allocate(stream, settings.storage, rows, features);
      device.bias(stream, reduced, context.weight(instruction.module + ".bias"), out);
    }
    outputs = {out};
    return true;
  }

 private:
  /// The distinct column ranges of the ranks, in rank order.
  std::vector<Ranges> column_parts(const std::string& module) const {
    std::vector<Ranges> parts;
    for (const Ranges& part : plan_.plan.placement(module).cols) {
      if (std::find(parts.begin(), parts.end(), part) == parts.end()) parts.push_back(part);
    }
    return parts;
  }

  static Tensor columns(RankContext& context, const Tensor& whole, const Ranges& part) {
    if (part.size() == 1) return whole.col_range(part[0].begin, part[0].end);
    const Tensor gathered = context.device().allocate(context.stream(), whole.dtype, whole.rows, total(part));
    std::int64_t at = 0;
    for (const Range& range : part) {
      context.device().copy(context.stream(), whole.col_range(range.begin, range.end),
                            gathered.col_range(at, at + range.size()));
      at += range.size();
    }
    return gathered;
  }

  const Program& plan_;
};

}  // namespace

std::unique_ptr<Interposer> make_split_sums(const Program& plan) {
  return std::make_unique<SplitSums>(plan);
}

}  // namespace shardcheck
