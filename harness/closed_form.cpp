// SPDX-License-Identifier: Apache-2.0
// The closed form of a plan: what every collective must carry, followed through the modules in forward order with
// nothing but the plan's ranges and the step's list of sequences. Where rows lie is stated here once more, row by row:
// nothing of Layout or Program is used.
#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <optional>
#include <utility>

#include "harness/audit.hpp"
#include "sharded/graph.hpp"

namespace shardcheck {
namespace {

using Kind = CollectiveStep::Kind;

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

bool is_rows(PlanDim dim) { return dim == PlanDim::tokens || dim == PlanDim::sequence; }

/// Where a value is: the axes that cut its rows, outer first, and every rank's features.
struct Held {
  struct RowCut {
    int axis;
    bool by_sequence;
    auto operator<=>(const RowCut&) const = default;
  };
  std::vector<RowCut> rows;
  std::vector<Ranges> features;  // by rank
};

/// A value that modules read: as it was produced, and as the steps at `.in` made it for those that read it.
struct Stream {
  Held produced;
  std::optional<Held> collected;
};

/// Which value a module reads or writes.
enum class Name { residual, block_input, q, k, inner, branch };

class Walk {
 public:
  Walk(const Model& model, const ResolvedPlan& plan, const RunSettings& settings,
       std::span<const Step> steps, int rank, const OpExchanges& exchanges)
      : model_(model),
        plan_(plan),
        settings_(settings),
        steps_(steps),
        step_(steps.back()),
        rank_(rank),
        exchanges_(exchanges) {}

  std::vector<ExpectedCollective> run() {
    place_ops();
    for (const Module& module : model_.modules()) visit(module);
    return std::move(expected_);
  }

 private:
  void visit(const Module& module) {
    exchange(before_[module.path]);
    const std::optional<Name> source = read_by(module.role);
    Held input = source ? collected(module, streams_[*source]) : everywhere({{0, 1}});
    statistic(module, input);
    Held output = std::move(input);
    if (module.kind != ModuleKind::norm) {
      for (int rank = 0; rank < mesh().ranks(); ++rank) {
        output.features[static_cast<std::size_t>(rank)] = module.kind == ModuleKind::embedding
                                                              ? plan_.cols_of(module, rank)
                                                              : plan_.rows_of(module, rank);
      }
    }
    exchange(inside_[module.path]);
    follow(module, ".out", output, false);
    write(module, output);
  }

  /// Which modules the values come before, or belong to, that the plan's own ops compute.
  void place_ops() {
    if (plan_.ops.empty()) return;
    std::vector<std::string> pending;
    for (const Node& node : build_graph(model_.config()).nodes) {
      const std::string& value = node.outputs[0];
      const auto& modules = model_.modules();
      const bool owns = std::any_of(modules.begin(), modules.end(),
                                    [&](const Module& module) { return module.path == value; });
      if (owns) before_[value] = std::exchange(pending, {});
      if (plan_.ops.find(value) != plan_.ops.end()) (owns ? inside_[value] : pending).push_back(value);
    }
  }
  void exchange(const std::vector<std::string>& values) {
    for (const std::string& value : values) {
      const auto form = exchanges_.find(plan_.ops.find(value)->second);
      if (form == exchanges_.end()) continue;
      for (ExpectedCollective& one : form->second({model_, plan_, settings_, steps_, value, rank_}))
        expected_.push_back(std::move(one));
    }
  }

  static std::optional<Name> read_by(ModuleRole role) {
    switch (role) {
      case ModuleRole::token_embedding:
      case ModuleRole::position_embedding:
        return std::nullopt;
      case ModuleRole::attention_norm:
      case ModuleRole::mlp_norm:
      case ModuleRole::final_norm:
        return Name::residual;
      case ModuleRole::q:
      case ModuleRole::k:
      case ModuleRole::v:
      case ModuleRole::qkv:
      case ModuleRole::gate:
      case ModuleRole::up:
      case ModuleRole::gate_up:
      case ModuleRole::fc:
      case ModuleRole::lm_head:
        return Name::block_input;
      case ModuleRole::q_norm:
      case ModuleRole::o:  // attention's output lies where its queries do
        return Name::q;
      case ModuleRole::k_norm:
        return Name::k;
      case ModuleRole::down:
        return Name::inner;
      case ModuleRole::attention_post_norm:
      case ModuleRole::mlp_post_norm:
        return Name::branch;
    }
    return std::nullopt;
  }

  void write(const Module& module, const Held& output) {
    const auto set = [&](Name name, const Held& value) { streams_[name] = {value, std::nullopt}; };
    switch (module.role) {
      case ModuleRole::position_embedding:  // added to the tokens', which lie alike
      case ModuleRole::v:
      case ModuleRole::up:
      case ModuleRole::lm_head:
        return;
      case ModuleRole::attention_norm:
      case ModuleRole::mlp_norm:
      case ModuleRole::final_norm:
        return set(Name::block_input, output);
      case ModuleRole::q:
      case ModuleRole::q_norm:
        return set(Name::q, output);
      case ModuleRole::k:
      case ModuleRole::k_norm:
        return set(Name::k, output);
      case ModuleRole::qkv:
        set(Name::q, section(module, ModuleRole::q, output));
        return set(Name::k, section(module, ModuleRole::k, output));
      case ModuleRole::gate:
      case ModuleRole::fc:
        return set(Name::inner, output);
      case ModuleRole::gate_up:
        return set(Name::inner, section(module, ModuleRole::gate, output));
      case ModuleRole::token_embedding:
      case ModuleRole::o:
      case ModuleRole::down:
      case ModuleRole::attention_post_norm:
      case ModuleRole::mlp_post_norm:
        set(Name::branch, output);
        set(Name::residual, output);
        return set(Name::block_input, output);  // until a norm comes between
    }
  }

  static Held section(const Module& module, ModuleRole role, Held fused) {
    const auto found = std::find_if(module.sections.begin(), module.sections.end(),
                                    [role](const Section& one) { return one.role == role; });
    if (found == module.sections.end()) return fused;
    for (Ranges& ranges : fused.features) {
      Ranges inside;
      for (const Range& range : ranges) {
        const std::int64_t begin = std::max(range.begin, found->begin);
        const std::int64_t end = std::min(range.end, found->end);
        if (begin < end) inside.push_back({begin - found->begin, end - found->begin});
      }
      ranges = std::move(inside);
    }
    return fused;
  }

  /// A module's input, by the steps at its `.in`: what several modules read is collected once.
  Held collected(const Module& module, Stream& stream) {
    if (!stream.collected && asks(module, ".in")) {
      Held value = stream.produced;
      follow(module, ".in", value, false);
      stream.collected = std::move(value);
    }
    return stream.collected.value_or(stream.produced);
  }

  /// One sum of squares per row, always in the accumulate dtype.
  void statistic(const Module& module, const Held& input) {
    if (!asks(module, ".stat")) return;
    Held sums = everywhere({{0, 1}});
    sums.rows = input.rows;
    follow(module, ".stat", sums, true);
  }

  const std::vector<CollectiveStep>& steps(const Module& module, std::string_view side) const {
    return plan_.steps(step_.phase, module.path + std::string(side));
  }
  bool asks(const Module& module, std::string_view side) const {
    const std::vector<CollectiveStep>& all = steps(module, side);
    return std::any_of(all.begin(), all.end(), [this](const CollectiveStep& one) {
      return mesh().group_size(axes_of(one)) > 1;
    });
  }

  void follow(const Module& module, std::string_view side, Held& value, bool is_statistic) {
    for (const CollectiveStep& step : steps(module, side)) {
      if (mesh().group_size(axes_of(step)) == 1) continue;
      const bool reduces = step.kind == Kind::all_reduce || step.kind == Kind::reduce_scatter;
      const DType dtype = is_statistic ? accumulate_dtype(settings_.storage)
                          : reduces    ? settings_.wire
                                       : settings_.storage;
      const auto size = static_cast<std::int64_t>(element_size(dtype));
      const std::int64_t own = elements(value) * size;
      const std::int64_t payload = carried(step, value) * size;
      if (step.kind == Kind::slice) continue;
      expected_.push_back({module.path, std::string(kind_name(step.kind)),
                           fmt::format("{}", fmt::join(step.axes, ",")), dtype, payload, own});
    }
  }

  /// Takes a value through one step. Returns the elements of the whole that the step is about: of a gather or an exchange
  /// what it joins, of all others what goes in.
  std::int64_t carried(const CollectiveStep& step, Held& value) const {
    switch (step.kind) {
      case Kind::all_reduce:
      case Kind::broadcast:
        return elements(value);
      case Kind::all_gather:
        join(step, step.dim, value);
        return elements(value);
      case Kind::reduce_scatter:
      case Kind::slice: {
        const std::int64_t whole = elements(value);
        cut(step, step.dim, value);
        return whole;
      }
      case Kind::all_to_all: {
        join(step, step.concat, value);
        const std::int64_t whole = elements(value);
        cut(step, step.dim, value);
        return whole;
      }
    }
    return 0;
  }

  void join(const CollectiveStep& step, PlanDim dim, Held& value) const {
    const std::vector<int> axes = axes_of(step);
    if (is_rows(dim)) {
      std::erase_if(value.rows, [&](const Held::RowCut& cut) {
        return std::find(axes.begin(), axes.end(), cut.axis) != axes.end();
      });
      return;
    }
    std::vector<Ranges> joined;
    for (int rank = 0; rank < mesh().ranks(); ++rank) {
      Ranges all;
      for (const int member : mesh().group(rank, axes)) {
        const Ranges& theirs = value.features[static_cast<std::size_t>(member)];
        all.insert(all.end(), theirs.begin(), theirs.end());
      }
      joined.push_back(normalized(std::move(all)));
    }
    value.features = std::move(joined);
  }

  void cut(const CollectiveStep& step, PlanDim dim, Held& value) const {
    const std::vector<int> axes = axes_of(step);
    if (is_rows(dim)) {
      for (const int axis : axes) value.rows.push_back({axis, dim == PlanDim::sequence});
      return;
    }
    const std::int64_t unit = dim == PlanDim::head || dim == PlanDim::kv_head ? model_.config().head_dim
                                                                              : 1;
    for (int rank = 0; rank < mesh().ranks(); ++rank) {
      const std::vector<int> group = mesh().group(rank, axes);
      const auto at = std::find(group.begin(), group.end(), rank) - group.begin();
      Ranges& mine = value.features[static_cast<std::size_t>(rank)];
      const Partition even = Partition::balanced(total(mine), static_cast<int>(group.size()), unit);
      mine = compose(mine, even.of(static_cast<int>(at)));
    }
  }

  std::int64_t elements(const Held& value) const {
    return rows(value.rows) * total(value.features[static_cast<std::size_t>(rank_)]);
  }

  /// Rows that the rank has under these cuts. By tokens: the r-th of P runs whose lengths differ by one at most, longer
  /// ones first. By sequence: those of sequence r, r + P, r + 2P, ...; a further such axis deals those out in turn.
  std::int64_t rows(const std::vector<Held::RowCut>& cuts) const {
    const auto known = rows_.find(cuts);
    if (known != rows_.end()) return known->second;
    std::vector<std::int64_t> turns;  // by row: where its sequence stands among those not dealt out yet
    for (const StepSequence& part : step_.sequences)
      turns.insert(turns.end(), static_cast<std::size_t>(part.count), part.sequence);
    const std::vector<int> at = mesh().coordinates(rank_);
    for (const Held::RowCut& cut : cuts) {
      const auto axis = static_cast<std::size_t>(cut.axis);
      const std::int64_t size = mesh().axes[axis].size, mine = at[axis];
      if (cut.by_sequence) {
        std::erase_if(turns, [&](std::int64_t turn) { return turn % size != mine; });
        for (std::int64_t& turn : turns) turn /= size;
      } else {
        const auto n = static_cast<std::int64_t>(turns.size());
        const std::int64_t begin = mine * (n / size) + std::min(mine, n % size);
        const std::int64_t end = begin + n / size + (mine < n % size ? 1 : 0);
        turns.assign(turns.begin() + begin, turns.begin() + end);
      }
    }
    return rows_[cuts] = static_cast<std::int64_t>(turns.size());
  }

  Held everywhere(const Ranges& features) const {
    return {{}, std::vector<Ranges>(static_cast<std::size_t>(mesh().ranks()), features)};
  }
  std::vector<int> axes_of(const CollectiveStep& step) const {
    std::vector<int> axes;
    for (const std::string& axis : step.axes) axes.push_back(mesh().axis_index(axis));
    return axes;
  }
  const Mesh& mesh() const { return plan_.mesh; }

  const Model& model_;
  const ResolvedPlan& plan_;
  const RunSettings& settings_;
  std::span<const Step> steps_;
  const Step& step_;
  int rank_;
  const OpExchanges& exchanges_;
  std::map<std::string, std::vector<std::string>> before_, inside_;  // values of the plan's own ops, by module
  std::map<Name, Stream> streams_;
  mutable std::map<std::vector<Held::RowCut>, std::int64_t> rows_;
  std::vector<ExpectedCollective> expected_;
};

}  // namespace

std::vector<ExpectedCollective> closed_form(const Model& model, const ResolvedPlan& plan,
                                            const RunSettings& settings, std::span<const Step> steps,
                                            int rank, const OpExchanges& exchanges) {
  return Walk(model, plan, settings, steps, rank, exchanges).run();
}

}  // namespace shardcheck
