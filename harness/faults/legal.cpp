// SPDX-License-Identifier: Apache-2.0
#include "harness/faults/legal.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "harness/faults/anatomy.hpp"
#include "harness/lint.hpp"
#include "harness/prove.hpp"
#include "sharded/op.hpp"

namespace shardcheck {
namespace {

class BlockedProducts final : public Interposer {
 public:
  explicit BlockedProducts(std::int64_t columns) : columns_(columns) {}

  bool replace(RankContext& context, const Instruction& i, const std::vector<Tensor>& inputs,
               std::vector<Tensor>& outputs) override {
    if (!faults::is_op(i, "linear") || i.adds_bias || inputs[0].cols <= columns_) return false;
    Device& device = context.device();
    Stream& stream = context.stream();
    const Tensor& weight = context.weight(i.module + ".weight");
    const DType wide = accumulate_dtype(context.settings().storage);
    std::vector<Tensor> terms;
    for (std::int64_t at = 0; at < weight.cols; at += columns_) {
      const std::int64_t end = std::min(at + columns_, weight.cols);
      terms.push_back(device.allocate(stream, wide, inputs[0].rows, weight.rows));
      device.linear(stream, inputs[0].col_range(at, end), weight.col_range(at, end), nullptr,
                    terms.back());
    }
    const Tensor sum = device.allocate(stream, wide, inputs[0].rows, weight.rows);
    device.reduce_n(stream, terms, {ReduceOp::sum, ReduceOrder::one_shot, HopRounding::f32}, 0,
                    sum.elements(), sum);
    outputs = {context.allocate(i.outputs[0])};
    device.cast(stream, sum, outputs[0]);
    return true;
  }

 private:
  std::int64_t columns_;
};

/// What one call of verify varies.
struct Variation {
  std::string words;
  VerifyOptions options;
};

class Legal {
 public:
  Legal(const Model& model, const Plan& plan, const std::vector<Mesh>& meshes, const VerifyParts& parts)
      : model_(model), plan_(plan), meshes_(meshes), parts_(parts) {}

  LegalRuns run() {
    for (const Variation& variation : variations()) verify_it(variation);
    prove_it("as it is", nullptr);
    const auto uneven = [this](ResolvedPlan& plan) { cut_unevenly(plan, model_.modules()); };
    prove_it("cut unevenly", uneven);
    const LintReport report = lint(model_, plan_, meshes_, parts_.ops);
    found_.runs += static_cast<std::int64_t>(report.meshes.size());
    if (!report.passed()) alarm("lint", "as it is", "an error");
    return std::move(found_);
  }

 private:
  VerifyOptions basic() const {
    VerifyOptions options;
    options.meshes = meshes_;
    options.dtypes = {DType::f64, DType::f32, DType::bf16, DType::f16};
    options.phases = {Phase::prefill, Phase::decode};
    options.inputs.lengths = {5, 3};
    options.inputs.decode_steps = 2;
    options.threads = 1;
    return options;
  }

  std::vector<Variation> variations() const {
    std::vector<Variation> all;
    const auto add = [&](std::string words) -> VerifyOptions& {
      all.push_back({std::move(words), basic()});
      return all.back().options;
    };
    for (const ReduceOrder order : {ReduceOrder::tree, ReduceOrder::one_shot, ReduceOrder::fixed_tree})
      add(fmt::format("order {}", name(order))).reduction.order = order;
    for (const ReduceOrder order : {ReduceOrder::ring, ReduceOrder::tree}) {
      VerifyOptions& options = add(fmt::format("order {}, hops in f32", name(order)));
      options.reduction.order = order;
      options.reduction.hop = HopRounding::f32;
    }
    VerifyOptions& wide = add("f32 wire");
    wide.wire = DType::f32;
    wide.dtypes = {DType::bf16, DType::f16};
    VerifyOptions& chunked = add("prompts in chunks of 2");
    chunked.inputs.chunk = 2;
    VerifyOptions& single = add("one sequence, another seed");
    single.inputs.lengths = {8};
    single.inputs.seed = 7;
    VerifyOptions& short_ones = add("fewer tokens than ranks");
    short_ones.inputs.lengths = {2, 1};
    short_ones.inputs.decode_steps = 1;
    add("norms fused with residual adds").fuse = true;
    VerifyOptions& blocked = add("products in blocks");
    blocked.fault = [](const Program& program, const RunSettings&,
                       Phase) -> std::unique_ptr<Interposer> {
      return program.mesh.ranks() > 1 ? make_blocked_products(16) : nullptr;
    };
    add("cut unevenly").edit_plan = [this](ResolvedPlan& plan) {
      cut_unevenly(plan, model_.modules());
    };
    return all;
  }

  void verify_it(const Variation& variation) {
    const VerifyReport report = verify(model_, plan_, variation.options, parts_);
    if (!report.ran) alarm("verify", variation.words, report.findings.at(0).sentence);
    for (const CellReport& cell : report.cells) {
      ++found_.runs;
      if (cell.verdict == Verdict::passed) continue;
      alarm(fmt::format("{} {} {}", to_string(cell.mesh), name(cell.dtype), name(cell.phase)),
            variation.words,
            cell.first
                ? fmt::format("{} at {}: {}", name(cell.verdict), cell.first->tap, cell.first->cause)
                : fmt::format("{}: {}", name(cell.verdict), fmt::join(cell.mistrust, "; ")));
    }
  }

  void prove_it(const std::string& words, std::function<void(ResolvedPlan&)> edit) {
    ProveOptions options;
    options.meshes = meshes_;
    options.phases = {Phase::prefill, Phase::decode};
    options.shrink = false;
    options.counterexample = false;
    options.edit_plan = std::move(edit);
    const ProveReport report = prove(model_, plan_, options, parts_);
    if (!report.ran) alarm("prove", words, report.findings.at(0).sentence);
    for (const ProveCell& cell : report.cells) {
      ++found_.runs;
      if (cell.verdict == ProofVerdict::equal) continue;
      alarm(fmt::format("prove {} {}", to_string(cell.mesh), name(cell.phase)), words,
            fmt::format("{} {}", name(cell.verdict), cell.first ? cell.first->tap : cell.reason));
    }
  }

  void alarm(const std::string& where, const std::string& words, const std::string& what) {
    found_.alarms.push_back(fmt::format("{} under {}, {}, {}: {}", model_.config().name, plan_.name,
                                        words, where, what));
  }

  const Model& model_;
  const Plan& plan_;
  const std::vector<Mesh>& meshes_;
  const VerifyParts& parts_;
  LegalRuns found_;
};

/// The border after each rank's range moves by one entry, in turns up and down.
void move_borders(std::vector<Ranges>& ranks) {
  for (std::size_t r = 0; r + 1 < ranks.size(); ++r) {
    if (ranks[r].size() != 1 || ranks[r + 1].size() != 1) return;
    Range &low = ranks[r][0], &high = ranks[r + 1][0];
    if (low.end != high.begin || low.size() < 4 || high.size() < 4) return;
  }
  for (std::size_t r = 0; r + 1 < ranks.size(); ++r) {
    const std::int64_t by = r % 2 == 0 ? 1 : -1;
    ranks[r][0].end += by;
    ranks[r + 1][0].begin += by;
  }
}

}  // namespace

std::unique_ptr<Interposer> make_blocked_products(std::int64_t columns) {
  return std::make_unique<BlockedProducts>(columns);
}

void cut_unevenly(ResolvedPlan& plan, const std::vector<Module>& modules) {
  if (plan.mesh.axes.size() > 1) return;
  for (const Module& module : modules) {
    ModulePlacement& placement = plan.weights[module.path];
    const bool vocabulary = module.role == ModuleRole::token_embedding ||
                            module.role == ModuleRole::lm_head;
    const bool up = module.role == ModuleRole::gate || module.role == ModuleRole::up ||
                    module.role == ModuleRole::fc;
    if (vocabulary || up) move_borders(placement.rows);
    if (module.role != ModuleRole::down) continue;
    // A fused gate | up keeps its rows, and so down its columns.
    const bool fused = std::any_of(modules.begin(), modules.end(), [&](const Module& m) {
      return m.layer == module.layer && m.role == ModuleRole::gate_up;
    });
    if (!fused) move_borders(placement.cols);
  }
}

LegalRuns legal_runs(const Model& model, const Plan& plan, const std::vector<Mesh>& meshes,
                     const VerifyParts& parts) {
  return Legal(model, plan, meshes, parts).run();
}

}  // namespace shardcheck
