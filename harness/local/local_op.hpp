// SPDX-License-Identifier: Apache-2.0
// The f64 recomputation of one op and its error budget: what gate G3 knows about an op. The table is data, a value
// that is passed in: a user's own op is judged after one `add`, and one without an entry is never called correct.
//
// Nothing here calls sharded/ops or a device: the numbers come from the candidate's own inputs, from the whole weights
// (rounded here) and from the reference's blocks, else the check would agree with the candidate's own mistakes.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "harness/local/weights.hpp"
#include "kernels/device.hpp"
#include "reference/matrix.hpp"
#include "sharded/program.hpp"

namespace shardcheck {

using F64Matrix = reference::Matrix<double>;

/// One op as one rank saw it, all judged steps stacked in the order they ran.
struct LocalCall {
  const Config& config;
  const Instruction& instruction;
  const RoundedWeights& weights;
  std::function<Arithmetic(Primitive, DType)> arithmetic{};
  DType storage = DType::f32;
  DType out = DType::f32;              // dtype of the outputs as they were got
  std::vector<const Step*> steps{};    // the judged steps
  std::vector<const Step*> history{};  // all steps of the run up to the last judged one
  std::vector<F64Matrix> inputs{};  // whole values as this rank sees them, by input       [rows, features]
  Ranges weight_rows{};  // rows of the module's weight that count in this rank's share of a partial output; else all
  Ranges columns{};  // features of the outputs that will be compared; others may be left 0
  int output = 0;    // which of the instruction's outputs is asked for

  /// An attribute of the node; `otherwise` where it has none.
  double attribute(std::string_view name, double otherwise = 0.0) const;
  /// Token ids, or positions, of all judged rows.
  std::vector<std::int64_t> ids() const;
  std::vector<std::int64_t> positions() const;
  /// Half an ulp of 1 in the accumulator that the device states for this primitive.
  double accumulator_roundoff(Primitive primitive) const;
  double out_roundoff() const { return unit_roundoff(out); }
  /// What a rounding may lose however small the value is: half of the smallest subnormal of the output.
  double underflow() const { return half_min_subnormal(out); }
};

/// The whole output in f64 and what each element may be off by. An empty budget: nothing may differ.
struct LocalValue {
  F64Matrix y;
  F64Matrix budget;
  std::string problem;  // not empty: can't be recomputed from these inputs, and why
};

/// How an op is judged.
struct LocalOp {
  /// The whole output `call.output` in f64 from whole inputs. Null for kind `product`.
  std::function<LocalValue(const LocalCall&)> recompute;
  /// Rounds once and sums nothing: |e| can't pass the budget at all (limit of A 1.01).
  bool rounds_once = false;
  /// Inputs are those of all steps up to the last judged one, not of the judged steps (the KV cache).
  bool reads_history = false;
  /// x W^T + b: recomputed by blocks of W's rows for all cells at once, with a partial's own share of the columns.
  bool product = false;
};

class LocalOps {
 public:
  void add(std::string op, LocalOp entry) { entries_[std::move(op)] = std::move(entry); }
  const LocalOp* find(std::string_view op) const;

 private:
  std::map<std::string, LocalOp, std::less<>> entries_;
};

/// embedding, linear, bias, rms_norm, head_norm, layer_norm, rms_statistic, rms_apply, rope, split, cache, attention, gate,
/// unary, add.
LocalOps builtin_local_ops();

/// Positions that a step lets attention see of each of its sequences: [max(0, first - window + 1), first + count)
/// (window 0: from 0), in the order of the step. These are the rows of a cache value.
std::vector<Range> visible_positions(const Step& step, std::int64_t window);
std::int64_t cache_rows(const Step& step, std::int64_t window);

/// Every number of `narrow` is one of `wide`: a copy from one to the other rounds nothing.
bool represents(DType wide, DType narrow);

// One per file of this folder.
LocalValue local_embedding(const LocalCall& call);
LocalValue local_bias(const LocalCall& call);
LocalValue local_rms_norm(const LocalCall& call);
LocalValue local_head_norm(const LocalCall& call);
LocalValue local_layer_norm(const LocalCall& call);
LocalValue local_rms_statistic(const LocalCall& call);
LocalValue local_rms_apply(const LocalCall& call);
LocalValue local_rope(const LocalCall& call);
LocalValue local_split(const LocalCall& call);
LocalValue local_cache(const LocalCall& call);
LocalValue local_attention(const LocalCall& call);
LocalValue local_gate(const LocalCall& call);
LocalValue local_unary(const LocalCall& call);
LocalValue local_add(const LocalCall& call);

}  // namespace shardcheck
