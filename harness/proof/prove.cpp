// SPDX-License-Identifier: Apache-2.0
#include "harness/prove.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <optional>

#include "harness/proof/counterexample.hpp"
#include "harness/proof/made_model.hpp"
#include "harness/proof/proof_run.hpp"
#include "harness/proof/shrink.hpp"
#include "harness/proof/whole_comparison.hpp"
#include "harness/quantisation_groups.hpp"
#include "kernels/field/field_device.hpp"
#include "sharded/placement_rule_names.hpp"

namespace shardcheck {
namespace {

constexpr double kWantedLog2 = -40.0;  // seeds are added until the chance lies below
constexpr double kLeastLog2 = -61.0;   // of one seed: no element tells more than log2(p) bits
constexpr double kWeakBound = 0.5;     // of one seed: more seeds would not help

class Proof {
 public:
  Proof(const Model& model, const Plan& plan, const ProveOptions& options, const VerifyParts& parts)
      : model_(model), plan_(plan), options_(options), parts_(parts) {}

  ProveReport run() {
    report_.model = model_.config().name;
    report_.plan = plan_.name;
    for (const Mesh& mesh : options_.meshes) note_findings(mesh);
    if (!report_.findings.empty() && !options_.force) {
      report_.ran = false;
      return std::move(report_);
    }
    for (const Mesh& mesh : options_.meshes) {
      const std::optional<Config> small = options_.shrink ? small_shape(mesh) : std::nullopt;
      const Config shape = small.value_or(model_.config());
      const ProofPair pair = make_proof_pair(model_, shape, MadeWeights::normal, plan_, mesh,
                                             options_, parts_.ops);
      for (const Phase phase : options_.phases) {
        report_.cells.push_back(cell(pair, phase));
        report_.cells.back().shrunk = small.has_value();
        progress("", static_cast<double>(report_.cells.size()));
      }
    }
    return std::move(report_);
  }

 private:
  void progress(const std::string& what, double cells) {
    const auto all = static_cast<double>(options_.meshes.size() * options_.phases.size());
    if (options_.progress) options_.progress(what, cells < 0.0 ? cells : cells / all);
  }

  /// The shrunken shape; none where a plan that is legal for the model's own breaks a rule on it: a cut by rows whose
  /// borders fall between heads, or between units of something else, only at the width that the model has.
  std::optional<Config> small_shape(const Mesh& mesh) const {
    const ResolvedPlan resolved = resolve(plan_, model_, mesh);
    Config small = shrunken(model_, plan_, resolved);
    if (!build_program(model_, resolved, parts_.ops).findings.empty()) return small;
    const Model like = made_model(model_, small, MadeWeights::normal);
    if (!build_program(like, resolve(plan_, like, mesh), parts_.ops).findings.empty()) return std::nullopt;
    return small;
  }

  void note_findings(const Mesh& mesh) {
    const Program program = build_program(model_, resolve(plan_, model_, mesh), parts_.ops);
    std::vector<Finding> findings = program.findings;
    for (Finding& finding : quantisation_groups(model_, program.plan)) {
      const PlacementRule* rule = find_placement_rule(finding.rule);
      if (rule == nullptr || rule->severity == Severity::error)
        findings.push_back(std::move(finding));
    }
    for (const Finding& finding : findings) {
      const auto same = [&](const Finding& f) {
        return f.rule == finding.rule && f.tap == finding.tap;
      };
      if (std::none_of(report_.findings.begin(), report_.findings.end(), same))
        report_.findings.push_back(finding);
    }
  }

  ProveCell cell(const ProofPair& pair, Phase phase) {
    ProveCell cell;
    cell.mesh = pair.plan.mesh;
    cell.phase = phase;
    cell.shape = pair.model->config();
    int wanted = options_.seeds.value_or(1);
    for (int seed = 1; seed <= wanted; ++seed) {
      progress(fmt::format("{} {} seed {} of {}", to_string(cell.mesh), name(phase), seed, wanted),
               -1.0);
      FieldDevice device(static_cast<std::uint64_t>(seed));
      WeightStore weights(*pair.model, DType::field, [&](const std::string& tensor, HostTensor& whole) {
        const field::Hash elements = device.elements(tensor);
        const auto out = whole.as_mutable<field::Residue>();
        for (std::size_t i = 0; i < out.size(); ++i) out[i] = elements.at(i);
      });
      const std::optional<RunDifference> first = difference(pair, phase, DType::field, device,
                                                            weights, cell.taps);
      cell.seeds = seed;
      const std::vector<field::SiteCount> sites = device.counts().sites();
      const double bound = field::chance(sites);
      cell.log2_chance += std::max(std::log2(bound), kLeastLog2);
      if (first) {
        confirm(pair, phase, *first, device.counts().zero_denominators(), cell);
        return cell;
      }
      if (bound >= kWeakBound) {
        const auto worst = std::max_element(
            sites.begin(), sites.end(), [](const field::SiteCount& a, const field::SiteCount& b) {
              return field::chance(a) < field::chance(b);
            });
        cell.reason = fmt::format(
            "the chance of a false \"equal\" is bounded by no less than {:.2g} for each seed: {} "
            "at {} was called "
            "{} times with arguments of degree {}; prove a smaller shape",
            bound, name(worst->function), worst->site, worst->calls, worst->degree);
        return cell;
      }
      if (!options_.seeds) wanted = seeds_for(std::max(std::log2(bound), kLeastLog2));
    }
    cell.verdict = ProofVerdict::equal;
    if (pair.sharded.mesh.ranks() > 1 && reduces_otherwise(pair.sharded, phase))
      confirm_order(pair, phase, cell);
    return cell;
  }

  /// True where a plan takes the maximum of a sum's shares. Residues have no sign: the largest of a share and zeros is
  /// the share, which for numbers holds only above zero.
  static bool reduces_otherwise(const Program& program, Phase phase) {
    const std::vector<Instruction>& code = program.instructions.at(phase);
    return std::any_of(code.begin(), code.end(), [&](const Instruction& i) {
      if (i.op != nullptr || i.collective.op != ReduceOp::max) return false;
      const std::vector<Placement>& placed = program.value(i.inputs[0]).layout.placements;
      return std::any_of(i.axes.begin(), i.axes.end(), [&](int axis) {
        return placed[static_cast<std::size_t>(axis)].kind == Placement::Kind::P_sum;
      });
    });
  }

  /// Where the field is blind, f64 decides.
  void confirm_order(const ProofPair& pair, Phase phase, ProveCell& cell) {
    const std::unique_ptr<Device> device = parts_.devices.make("cpu");
    WeightStore weights(*pair.model, DType::f64);
    const std::optional<RunDifference> in_f64 = difference(pair, phase, DType::f64, *device,
                                                           weights, cell.taps);
    if (!in_f64) return;
    cell.first = first_difference(pair, phase, *in_f64);
    cell.verdict = ProofVerdict::wrong;
  }

  /// The fewest seeds of this bound each that push their product below the wanted one.
  static int seeds_for(double log2_bound) {
    return static_cast<int>(std::floor(kWantedLog2 / log2_bound)) + 1;
  }

  std::optional<RunDifference> difference(const ProofPair& pair, Phase phase, DType dtype,
                                          Device& device, WeightStore& weights, std::int64_t& values) {
    const std::vector<Step>& steps = pair.steps.at(phase);
    const ProofRun whole = run_for_proof(pair.whole, device, weights, dtype, steps, nullptr, parts_);
    const std::unique_ptr<Interposer> fault = fault_of(pair, dtype, phase, options_);
    const ProofRun sharded = run_for_proof(pair.sharded, device, weights, dtype, steps, fault.get(),
                                           parts_);
    const RunComparison comparison = compare_runs(sharded, whole, weights, pair.plan, device);
    values += comparison.values;
    return comparison.first;
  }

  /// One-sided: what differs over the field may be equal for numbers, by an identity that random functions don't have.
  void confirm(const ProofPair& pair, Phase phase, const RunDifference& over_field,
               std::int64_t zero_denominators, ProveCell& cell) {
    progress(fmt::format("{} {} in f64", to_string(cell.mesh), name(phase)), -1.0);
    const std::unique_ptr<Device> device = parts_.devices.make("cpu");
    WeightStore weights(*pair.model, DType::f64);
    std::int64_t values = 0;
    const std::optional<RunDifference> in_f64 = difference(pair, phase, DType::f64, *device,
                                                           weights, values);
    const bool same_tap = in_f64 && in_f64->tap == over_field.tap && in_f64->step == over_field.step;
    cell.first = first_difference(pair, phase, !in_f64 || same_tap ? over_field : *in_f64);
    if (!in_f64) {
      cell.verdict = ProofVerdict::unproven;
      cell.reason = zero_denominators > 0
                        ? fmt::format("{} divisions by zero over the field, and f64 agrees",
                                      zero_denominators)
                        : "it differs over the field and not in f64: the programs may use an "
                          "identity of real numbers "
                          "that random functions do not have";
      return;
    }
    cell.verdict = ProofVerdict::wrong;
    if (!options_.counterexample) return;
    cell.counterexample = find_counterexample(model_, plan_, cell.mesh, *cell.first, cell.shape,
                                              phase, options_, parts_);
  }

  static FirstDifference first_difference(const ProofPair& pair, Phase phase,
                                          const RunDifference& found) {
    const Step& step = pair.steps.at(phase)[found.step];
    FirstDifference first;
    first.tap = found.tap;
    first.phase = step.phase;
    first.step = step.index;
    first.ranks = found.ranks;
    first.all_ranks = static_cast<int>(found.ranks.size()) == pair.sharded.mesh.ranks();
    first.row = found.row;
    first.feature = found.feature;
    first.problem = found.problem;
    return first;
  }

  const Model& model_;
  const Plan& plan_;
  const ProveOptions& options_;
  const VerifyParts& parts_;
  ProveReport report_;
};

}  // namespace

std::string_view name(ProofVerdict verdict) {
  switch (verdict) {
    case ProofVerdict::equal:
      return "equal";
    case ProofVerdict::wrong:
      return "wrong";
    case ProofVerdict::unproven:
      return "unproven";
  }
  return "?";
}

bool ProveReport::passed() const {
  return ran && std::all_of(cells.begin(), cells.end(), [](const ProveCell& cell) {
           return cell.verdict == ProofVerdict::equal;
         });
}

ProveReport prove(const Model& model, const Plan& plan, const ProveOptions& options,
                  const VerifyParts& parts) {
  return Proof(model, plan, options, parts).run();
}

}  // namespace shardcheck
