// SPDX-License-Identifier: Apache-2.0
#include "harness/audit.hpp"

#include <fmt/format.h>

#include <algorithm>

namespace shardcheck {
namespace {

using Kind = CollectiveStep::Kind;

bool is_tokens(PlanDim dim) { return dim == PlanDim::tokens || dim == PlanDim::sequence; }

std::vector<int> axes_of(const CollectiveStep& step, const Mesh& mesh) {
  std::vector<int> axes;
  for (const std::string& axis : step.axes) axes.push_back(mesh.axis_index(axis));
  return axes;
}

std::int64_t unit_of(PlanDim dim, const Config& config) {
  return dim == PlanDim::head || dim == PlanDim::kv_head ? config.head_dim : 1;
}

std::string_view kind_name(Kind kind) {
  switch (kind) {
    case Kind::all_reduce:
      return "all_reduce";
    case Kind::reduce_scatter:
      return "reduce_scatter";
    case Kind::all_gather:
      return "all_gather";
    case Kind::all_to_all:
      return "all_to_all";
    case Kind::broadcast:
      return "broadcast";
    case Kind::slice:
      return "slice";
  }
  return "?";
}

/// The shape that a point's value has on one rank, followed through the steps at that point.
class PointShape {
 public:
  PointShape(const Mesh& mesh, int rank, std::int64_t tokens, std::vector<Ranges> features)
      : mesh_(mesh), rank_(rank), tokens_{{0, tokens}}, features_(std::move(features)) {}

  std::int64_t elements() const { return total(tokens_) * total(mine()); }

  void gather(const std::vector<int>& axes, bool along_tokens, std::int64_t all_tokens) {
    if (along_tokens) {
      tokens_ = {{0, all_tokens}};
      return;
    }
    std::vector<Ranges> joined;
    for (int rank = 0; rank < mesh_.ranks(); ++rank) {
      Ranges all;
      for (const int member : mesh_.group(rank, axes)) {
        const Ranges& theirs = features_[static_cast<std::size_t>(member)];
        all.insert(all.end(), theirs.begin(), theirs.end());
      }
      joined.push_back(normalized(std::move(all)));
    }
    features_ = std::move(joined);
  }
  void split(const std::vector<int>& axes, bool along_tokens, std::int64_t unit) {
    const auto piece = [&](const Ranges& whole, int rank, std::int64_t size) {
      const std::vector<int> group = mesh_.group(rank, axes);
      const auto at = std::find(group.begin(), group.end(), rank) - group.begin();
      return compose(whole, Partition::balanced(total(whole), static_cast<int>(group.size()), size)
                                .of(static_cast<int>(at)));
    };
    if (along_tokens) {
      tokens_ = piece(tokens_, rank_, 1);
      return;
    }
    for (int rank = 0; rank < mesh_.ranks(); ++rank) {
      Ranges& theirs = features_[static_cast<std::size_t>(rank)];
      theirs = piece(theirs, rank, unit);
    }
  }

 private:
  const Ranges& mine() const { return features_[static_cast<std::size_t>(rank_)]; }

  const Mesh& mesh_;
  int rank_;
  Ranges tokens_;
  std::vector<Ranges> features_;  // by rank
};

/// The module whose output rows, cut as they are, reach this module's input element by element: gate or fc before down,
/// q before o. Null where a norm or the residual stream lies between, or where collectives change the cut on the way.
const Module* cut_like(const Model& model, const ResolvedPlan& plan, Phase phase, const Module& module) {
  for (const Module& other : model.modules()) {
    if (other.layer != module.layer || !plan.steps(phase, other.path + ".out").empty()) continue;
    const bool mlp = other.role == ModuleRole::gate || other.role == ModuleRole::fc;
    const bool attention = other.role == ModuleRole::q || other.role == ModuleRole::qkv;
    if (module.role == ModuleRole::down ? mlp : module.role == ModuleRole::o && attention)
      return &other;
  }
  return nullptr;
}

/// The ranges of a rank that lie in [0, extent): of a fused q | k | v those of q.
Ranges first_elements(const Ranges& ranges, std::int64_t extent) {
  Ranges inside;
  for (const Range& range : ranges) {
    if (range.begin < extent) inside.push_back({range.begin, std::min(range.end, extent)});
  }
  return inside;
}

std::string describe(const ExpectedCollective& e) {
  return fmt::format("{} over {} of {} bytes ({}) at {}", e.what, e.group, e.payload_bytes,
                     name(e.dtype), e.module);
}
std::string describe(const LedgerRecord& r) {
  return fmt::format("{} over {} of {} bytes ({}) at {}", r.what, r.group, r.payload_bytes,
                     name(r.dtype), r.site);
}

/// The tap belongs to the module, its input or one of its stages.
bool belongs(std::string_view site, std::string_view module) {
  return site == module || (site.size() > module.size() &&
                            site.substr(0, module.size()) == module && site[module.size()] == '.');
}

}  // namespace

std::vector<ExpectedCollective> closed_form(const Model& model, const ResolvedPlan& plan,
                                            const RunSettings& settings, const Step& step, int rank) {
  std::vector<ExpectedCollective> expected;
  const Mesh& mesh = plan.mesh;
  std::map<std::string, bool> input_done;  // one block's shared input is collected once
  for (const Module& module : model.modules()) {
    for (const char* side : {".in", ".out"}) {
      const bool in = std::string_view(side) == ".in";
      const std::vector<CollectiveStep>& steps = plan.steps(step.phase, module.path + side);
      if (steps.empty()) continue;
      if (in) {
        // q, k and v read one norm's output, gate and up another's.
        const bool mlp = module.role == ModuleRole::gate || module.role == ModuleRole::up;
        const bool qkv = module.role == ModuleRole::q || module.role == ModuleRole::k ||
                         module.role == ModuleRole::v;
        if (mlp || qkv) {
          bool& done = input_done[fmt::format("{}.{}", module.layer, mlp ? "mlp" : "attention")];
          if (done) continue;
          done = true;
        }
      }
      // At `.out` the weight's rows say what each rank made (an embedding's row is as wide as its columns); at `.in` those
      // of the module before do. Where neither says so, the value is whole, or cut as the gather or exchange that comes
      // first undoes.
      const Module* before = in ? cut_like(model, plan, step.phase, module) : nullptr;
      std::vector<Ranges> features;
      for (int r = 0; r < mesh.ranks(); ++r) {
        if (before != nullptr) {
          features.push_back(first_elements(plan.rows_of(*before, r), module.in));
        } else if (in) {
          features.push_back({{0, module.kind == ModuleKind::norm ? module.out : module.in}});
        } else {
          features.push_back(module.kind == ModuleKind::embedding ? plan.cols_of(module, r)
                                                                  : plan.rows_of(module, r));
        }
      }
      PointShape shape(mesh, rank, step.tokens(), features);
      const bool exchanges = steps.front().kind == Kind::all_to_all;
      const PlanDim joined = exchanges ? steps.front().concat : steps.front().dim;
      if ((exchanges || steps.front().kind == Kind::all_gather) &&
          (is_tokens(joined) || (in && before == nullptr))) {
        shape.split(axes_of(steps.front(), mesh), is_tokens(joined), unit_of(joined, model.config()));
      }
      for (const CollectiveStep& collective : steps) {
        const std::vector<int> axes = axes_of(collective, mesh);
        if (mesh.group_size(axes) == 1) continue;
        const std::int64_t unit = unit_of(collective.dim, model.config());
        const bool reduces = collective.kind == Kind::all_reduce ||
                             collective.kind == Kind::reduce_scatter;
        const DType dtype = reduces ? settings.wire : settings.storage;
        const auto size = static_cast<std::int64_t>(element_size(dtype));
        const std::int64_t own = shape.elements() * size;
        std::int64_t payload = own;  // of the whole: a gather's output, what an exchange joins
        switch (collective.kind) {
          case Kind::all_reduce:
          case Kind::broadcast:
            break;
          case Kind::all_gather:
            shape.gather(axes, is_tokens(collective.dim), step.tokens());
            payload = shape.elements() * size;
            break;
          case Kind::reduce_scatter:
          case Kind::slice:
            shape.split(axes, is_tokens(collective.dim), unit);
            break;
          case Kind::all_to_all:
            shape.gather(axes, is_tokens(collective.concat), step.tokens());
            payload = shape.elements() * size;
            shape.split(axes, is_tokens(collective.dim), unit);
            break;
        }
        if (collective.kind == Kind::slice) continue;
        expected.push_back({module.path, std::string(kind_name(collective.kind)),
                            fmt::format("{}", fmt::join(collective.axes, ",")), dtype, payload, own});
      }
    }
  }
  return expected;
}

AuditResult audit(const Model& model, const ResolvedPlan& plan, const RunSettings& settings,
                  std::span<const Step> steps, const std::vector<Ledger>& ledgers,
                  const std::vector<Ledger>& meta) {
  AuditResult result;
  const auto fail = [&](int rank, std::string site, std::string problem) {
    if (result.passed) {
      result.passed = false;
      result.site = std::move(site);
      result.problem = fmt::format("rank {}: {}", rank, problem);
    }
    result.ranks.push_back(rank);
  };
  for (int rank = 0; rank < plan.mesh.ranks(); ++rank) {
    const Ledger& ledger = ledgers[static_cast<std::size_t>(rank)];
    std::vector<const LedgerRecord*> issued;
    for (const LedgerRecord& record : ledger) {
      if (record.kind == LedgerRecord::Kind::collective) issued.push_back(&record);
    }
    std::size_t at = 0;
    bool good = true;
    for (const Step& step : steps) {
      for (const ExpectedCollective& e : closed_form(model, plan, settings, step, rank)) {
        if (rank == 0) {
          ++result.collectives;
          result.payload_bytes += e.payload_bytes;
        }
        if (!good) continue;
        const LedgerRecord* got = at < issued.size() ? issued[at] : nullptr;
        ++at;
        if (got != nullptr && got->what == e.what && got->group == e.group && got->dtype == e.dtype &&
            got->payload_bytes == e.payload_bytes && got->own_bytes == e.own_bytes &&
            got->phase == step.phase && got->step == step.index && belongs(got->site, e.module)) {
          continue;
        }
        good = false;
        fail(rank, got != nullptr ? got->site : e.module,
             fmt::format(
                 "{} step {}: the plan asks for {}, but {}", name(step.phase), step.index, describe(e),
                 got == nullptr ? "nothing more was issued" : "the rank issued " + describe(*got)));
      }
    }
    if (good && at < issued.size()) {
      good = false;
      fail(rank, issued[at]->site,
           "the rank issued a collective that the plan doesn't ask for: " + describe(*issued[at]));
    }
    const Ledger& shapes = meta[static_cast<std::size_t>(rank)];
    const auto [mine, theirs] = std::mismatch(ledger.begin(), ledger.end(), shapes.begin(),
                                              shapes.end());
    if (good && (mine != ledger.end() || theirs != shapes.end())) {
      const LedgerRecord& record = mine != ledger.end() ? *mine : *theirs;
      fail(rank, record.site,
           fmt::format("record {} ({} at {}) differs between the device and meta",
                       mine - ledger.begin(), record.what, record.site));
    }
  }
  return result;
}

}  // namespace shardcheck
