// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "harness/local/local_op.hpp"

namespace shardcheck {

double LocalCall::attribute(std::string_view name, double otherwise) const {
  const auto it = instruction.attributes.find(name);
  return it == instruction.attributes.end() ? otherwise : it->second;
}

std::vector<std::int64_t> LocalCall::ids() const {
  std::vector<std::int64_t> all;
  for (const Step* step : steps) all.insert(all.end(), step->ids.begin(), step->ids.end());
  return all;
}

std::vector<std::int64_t> LocalCall::positions() const {
  std::vector<std::int64_t> all;
  for (const Step* step : steps) {
    const std::vector<std::int64_t> here = step->positions();
    all.insert(all.end(), here.begin(), here.end());
  }
  return all;
}

double LocalCall::accumulator_roundoff(Primitive primitive) const {
  if (!arithmetic) return unit_roundoff(accumulate_dtype(storage));
  const Arithmetic stated = arithmetic(primitive, storage);
  return unit_roundoff(stated.accumulate) * (stated.truncating ? 2.0 : 1.0);
}

const LocalOp* LocalOps::find(std::string_view op) const {
  const auto it = entries_.find(op);
  return it == entries_.end() ? nullptr : &it->second;
}

LocalOps builtin_local_ops() {
  LocalOps ops;
  LocalOp linear;
  linear.product = true;
  ops.add("linear", linear);
  ops.add("embedding", {local_embedding, /*rounds_once=*/true});
  ops.add("bias", {local_bias, /*rounds_once=*/true});
  ops.add("add", {local_add, /*rounds_once=*/true});
  ops.add("split", {local_split, /*rounds_once=*/true});
  ops.add("cache", {local_cache, /*rounds_once=*/true, /*reads_history=*/true});
  ops.add("rms_norm", {local_rms_norm});
  ops.add("head_norm", {local_head_norm});
  ops.add("layer_norm", {local_layer_norm});
  ops.add("rms_statistic", {local_rms_statistic});
  ops.add("rms_apply", {local_rms_apply});
  ops.add("rope", {local_rope});
  ops.add("attention", {local_attention});
  ops.add("gate", {local_gate});
  ops.add("unary", {local_unary});
  return ops;
}

std::vector<Range> visible_positions(const Step& step, std::int64_t window) {
  std::vector<Range> visible;
  for (const StepSequence& part : step.sequences) {
    const std::int64_t end = part.first + part.count;
    const std::int64_t begin = window > 0 ? std::max<std::int64_t>(0, part.first - window + 1) : 0;
    visible.push_back({part.count > 0 ? begin : end, end});
  }
  return visible;
}

std::int64_t cache_rows(const Step& step, std::int64_t window) {
  return total(visible_positions(step, window));
}

bool represents(DType wide, DType narrow) {
  const DTypeInfo& w = info(wide);
  const DTypeInfo& n = info(narrow);
  const int lowest_w = w.min_exponent - w.precision, lowest_n = n.min_exponent - n.precision;
  return w.precision >= n.precision && lowest_w <= lowest_n && w.max_finite >= n.max_finite;
}

}  // namespace shardcheck
