// SPDX-License-Identifier: Apache-2.0
// The right numbers in the wrong place: another rank's part, heads, sections, features or rows in another order. A block
// is looked for among all blocks of the whole value; what is found is the evidence.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>

#include "harness/diagnose/hypothesis.hpp"
#include "harness/judge_collective.hpp"
#include "sharded/op.hpp"

namespace shardcheck {
namespace {

using Places = std::vector<std::pair<std::int64_t, std::int64_t>>;  // (where, what stands there), wrong ones only

std::string listed(const Places& places, std::string_view unit) {
  std::string text;
  for (std::size_t i = 0; i < places.size() && i < 4; ++i)
    text += fmt::format("{}{} {} holds {}", i == 0 ? "" : ", ", unit, places[i].first,
                        places[i].second);
  return places.size() > 4 ? text + fmt::format(" and {} more", places.size() - 4) : text;
}

class Relocation {
 public:
  Relocation(const RankCase& rank, Explanations& found)
      : rank_(rank), found_(found), y_(rank.expected().y), cols_(y_.cols()), rows_(y_.rows()) {
    for (const Range& range : rank.features()) {
      for (std::int64_t d = range.begin; d < range.end; ++d) own_.push_back(d);
    }
  }

  void run() {
    if (own_.empty() || rows_ == 0) return;
    find_givers();
    parts_of_other_ranks();
    heads();
    sections();
    features();
    rows();
  }

 private:
  /// The value whose column d is column from[d] of the expected one.
  LocalValue moved_columns(const std::vector<std::int64_t>& from) const {
    LocalValue value{y_, F64Matrix(rows_, cols_), {}};
    for (std::int64_t m = 0; m < rows_; ++m) {
      for (std::int64_t d = 0; d < cols_; ++d) {
        const std::int64_t source = from[static_cast<std::size_t>(d)];
        value.y(m, d) = y_(m, source);
        value.budget(m, d) = rank_.budget(m, source);
      }
    }
    return value;
  }
  std::vector<std::int64_t> identity() const {
    std::vector<std::int64_t> from;
    for (std::int64_t d = 0; d < cols_; ++d) from.push_back(d);
    return from;
  }
  bool column_is(std::int64_t local, std::int64_t source) const {
    for (std::int64_t m = 0; m < rows_; ++m) {
      if (!rank_.wrong().rows[static_cast<std::size_t>(m)] || !rank_.owned(m, local)) continue;
      const double e = std::abs(rank_.got()(m, local) - y_(m, source));
      if (!(e <= rank_.residual()->limits.a * rank_.budget(m, source))) return false;
    }
    return true;
  }
  bool owns(std::int64_t feature) const {
    return std::binary_search(own_.begin(), own_.end(), feature);
  }

  /// Of a value that is only moved: which rank each element comes from. Empty for others.
  void find_givers() {
    const FailedOp& op = rank_.op();
    if (!op.op().empty() || rank_.sum() != nullptr) return;
    const TapReader& input = op.inputs().front();
    givers_.assign(static_cast<std::size_t>(rows_ * cols_), -1);
    local_rows_.assign(static_cast<std::size_t>(rows_), -1);
    local_cols_.assign(static_cast<std::size_t>(cols_), -1);
    for (const int giver : collective_sources(op.work(), input, rank_.rank())) {
      if (!input.defect(giver).empty()) continue;
      std::int64_t before = 0, local_col = 0;
      for (const Range& range : input.layout().feature_ranges(giver)) {
        for (std::int64_t d = range.begin; d < range.end; ++d)
          local_cols_[static_cast<std::size_t>(d)] = local_col++;
      }
      for (std::size_t s = 0; s < input.steps(); ++s) {
        std::int64_t local_row = 0;
        for (const Range& rows : input.row_ranges(s, giver)) {
          for (std::int64_t m = before + rows.begin; m < before + rows.end; ++m) {
            local_rows_[static_cast<std::size_t>(m)] = local_row++;
            for (const Range& range : input.layout().feature_ranges(giver))
              std::fill_n(givers_.begin() + m * cols_ + range.begin, range.size(), giver);
          }
        }
        before += input.rows(s);
      }
    }
  }
  /// The element at `source` is another rank's than the one that belongs at `at`.
  bool foreign_element(std::int64_t at_row, std::int64_t at, std::int64_t row,
                       std::int64_t source) const {
    if (!rank_.owned(row, source)) return true;
    if (givers_.empty()) return false;
    // Parts that stand in each other's place keep their order.
    if (local_rows_[static_cast<std::size_t>(at_row)] != local_rows_[static_cast<std::size_t>(row)])
      return false;
    if (local_cols_[static_cast<std::size_t>(at)] != local_cols_[static_cast<std::size_t>(source)])
      return false;
    return givers_[static_cast<std::size_t>(at_row * cols_ + at)] !=
           givers_[static_cast<std::size_t>(row * cols_ + source)];
  }

  /// Of what is gathered all wrong elements, else any.
  bool is_foreign(std::size_t foreign, const Places& places) const {
    return givers_.empty() ? foreign > 0 : foreign == places.size();
  }

  void parts_of_other_ranks() {
    const Layout& layout = rank_.op().output().layout();
    if (layout.owned.empty()) return;
    for (int other = 0; other < rank_.op().ranks(); ++other) {
      std::vector<std::int64_t> theirs;
      for (const Range& range : layout.feature_ranges(other)) {
        for (std::int64_t d = range.begin; d < range.end; ++d) theirs.push_back(d);
      }
      if (theirs == own_ || theirs.size() != own_.size()) continue;
      std::vector<std::int64_t> from = identity();
      for (std::size_t i = 0; i < own_.size(); ++i)
        from[static_cast<std::size_t>(own_[i])] = theirs[i];
      found_.test(
          is_kv() ? "kv_head_of_neighbour" : "rows_of_wrong_rank", moved_columns(from),
          fmt::format("rank {} holds rank {}'s part, features {} in place of {}", rank_.rank(),
                      other, to_string(layout.feature_ranges(other)), to_string(rank_.features())));
    }
  }

  bool is_kv() const {
    const Module* const module = rank_.op().module();
    if (module != nullptr && (module->role == ModuleRole::k || module->role == ModuleRole::v))
      return true;
    const std::string& tap = rank_.op().output().name();
    return tap.ends_with(".k_rot") || tap.ends_with(".k_cache") || tap.ends_with(".v_cache");
  }

  /// Blocks of `unit` features; own_ is taken as whole blocks.
  void blocks(std::int64_t unit, std::string_view inside, std::string_view outside,
              std::string_view words) {
    if (unit < 1 || cols_ % unit != 0 || cols_ / unit < 2) return;
    std::vector<std::int64_t> from = identity();
    Places places;
    bool foreign = false, crosses = false;
    for (std::size_t i = 0; i + static_cast<std::size_t>(unit) <= own_.size();
         i += static_cast<std::size_t>(unit)) {
      const std::int64_t at = own_[i];
      if (at % unit != 0 || own_[i + static_cast<std::size_t>(unit) - 1] != at + unit - 1) return;
      if (block_is(at, at, unit)) continue;
      std::int64_t source = -1;
      for (std::int64_t b = 0; b < cols_ / unit && source < 0; ++b) {
        if (b * unit != at && block_is(at, b * unit, unit)) source = b * unit;
      }
      if (source < 0) return;
      for (std::int64_t d = 0; d < unit; ++d) from[static_cast<std::size_t>(at + d)] = source + d;
      places.push_back({at / unit, source / unit});
      foreign = foreign || !owns(source);
      crosses = crosses || section_at(at) != section_at(source);
    }
    if (places.empty()) return;
    found_.test(crosses   ? "permuted_sections"
                : foreign ? outside
                          : inside,
                moved_columns(from),
                fmt::format("on rank {}, {}", rank_.rank(), listed(places, words)));
  }
  bool block_is(std::int64_t at, std::int64_t source, std::int64_t unit) const {
    for (std::int64_t d = 0; d < unit; ++d) {
      if (!column_is(at + d, source + d)) return false;
    }
    return true;
  }

  /// Its features are heads.
  bool has_heads() const {
    const Module* const module = rank_.op().module();
    const std::string& tap = rank_.op().output().name();
    for (const std::string_view suffix :
         {".q_rot", ".k_rot", ".attn", ".q", ".k", ".v", ".k_cache", ".v_cache"}) {
      if (tap.ends_with(suffix)) return true;
    }
    if (module == nullptr) return false;
    const ModuleRole role = module->role;
    return role == ModuleRole::q || role == ModuleRole::k || role == ModuleRole::v ||
           role == ModuleRole::qkv || role == ModuleRole::q_norm || role == ModuleRole::k_norm;
  }
  ModuleRole section_at(std::int64_t feature) const {
    const Module* const module = rank_.op().module();
    for (const Section& section :
         module == nullptr || module->out != cols_ ? std::vector<Section>{} : module->sections) {
      if (section.begin <= feature && feature < section.end) return section.role;
    }
    return ModuleRole::q;
  }

  void heads() {
    if (!has_heads()) return;
    const std::int64_t head_dim = rank_.op().program().config.head_dim;
    blocks(head_dim, is_kv() ? "kv_head_of_neighbour" : "permuted_heads",
           is_kv() ? "kv_head_of_neighbour" : "rows_of_wrong_rank", is_kv() ? "kv head" : "head");
  }

  /// The rank's own features in the order in which a fused weight's sections could have been cut or stacked.
  void sections() {
    const Module* const module = rank_.op().module();
    if (module == nullptr || module->sections.size() < 2 || module->out != cols_) return;
    // One block of rows cut across the sections.
    const int ranks = rank_.op().ranks();
    for (const Partition& cut : {Partition::balanced(cols_, ranks), Partition::chunked(cols_, ranks)}) {
      const Ranges block = cut.of(rank_.rank());
      if (total(block) != static_cast<std::int64_t>(own_.size())) continue;
      std::vector<std::int64_t> from = identity();
      for (std::size_t i = 0; i < own_.size(); ++i)
        from[static_cast<std::size_t>(own_[i])] = block.front().begin + static_cast<std::int64_t>(i);
      found_.test(
          "permuted_sections", moved_columns(from),
          fmt::format(
              "rank {} holds features {}, one block across the sections of {}, in place of {}",
              rank_.rank(), to_string(block), module->path, to_string(rank_.features())));
    }
    // The sections in another order: the parts of each, as long as they are, one after the other.
    std::vector<std::vector<std::int64_t>> parts;
    for (const Section& section : module->sections) {
      parts.emplace_back();
      for (const std::int64_t d : own_) {
        if (d >= section.begin && d < section.end) parts.back().push_back(d);
      }
    }
    std::vector<std::size_t> order(parts.size());
    for (std::size_t i = 0; i < order.size(); ++i) order[i] = i;
    while (std::next_permutation(order.begin(), order.end())) {
      std::vector<std::int64_t> sequence;
      for (const std::size_t i : order)
        sequence.insert(sequence.end(), parts[i].begin(), parts[i].end());
      std::vector<std::int64_t> from = identity();
      for (std::size_t i = 0; i < own_.size(); ++i)
        from[static_cast<std::size_t>(own_[i])] = sequence[i];
      found_.test("permuted_sections", moved_columns(from),
                  fmt::format("rank {} holds the sections of {} in the order {}", rank_.rank(),
                              module->path, fmt::join(order, ", ")));
    }
  }

  /// Every wrong feature is some other feature. Candidates are narrowed by the first wrong row.
  void features() {
    std::int64_t probe = -1;
    for (std::int64_t m = 0; m < rows_ && probe < 0; ++m) {
      if (rank_.wrong().rows[static_cast<std::size_t>(m)] && rank_.owned(m, own_.front()))
        probe = m;
    }
    if (probe < 0) return;
    std::vector<std::pair<double, std::int64_t>> sorted;
    for (std::int64_t d = 0; d < cols_; ++d) sorted.push_back({y_(probe, d), d});
    std::sort(sorted.begin(), sorted.end());
    double widest = 0.0;
    for (std::int64_t d = 0; d < cols_; ++d) widest = std::max(widest, rank_.budget(probe, d));
    widest *= rank_.residual()->limits.a;
    std::vector<std::int64_t> from = identity();
    std::map<std::int64_t, std::int64_t> distances;
    Places places;
    std::size_t foreign = 0;
    bool crosses = false;
    for (const std::int64_t d : own_) {
      if (column_is(d, d)) continue;
      const double value = rank_.got()(probe, d);
      std::int64_t source = -1;
      for (auto at = std::lower_bound(sorted.begin(), sorted.end(),
                                      std::pair{value - widest, std::int64_t{-1}});
           at != sorted.end() && at->first <= value + widest && source < 0; ++at) {
        if (column_is(d, at->second)) source = at->second;
      }
      if (source < 0) return;
      from[static_cast<std::size_t>(d)] = source;
      ++distances[source - d];
      places.push_back({d, source});
      foreign += foreign_element(probe, d, probe, source) ? 1 : 0;
      crosses = crosses || section_at(d) != section_at(source);
    }
    // A single wrong feature equals some other one by chance where there are few tokens.
    if (places.size() < 2) return;
    const bool shifted = distances.size() == 1;
    std::string words = shifted
                            ? fmt::format("on rank {}, features hold those {} further on ({})",
                                          rank_.rank(), distances.begin()->first,
                                          listed(places, "feature"))
                            : fmt::format("on rank {}, {}", rank_.rank(), listed(places, "feature"));
    const bool product = rank_.op().op() == "linear" || rank_.op().op() == "bias";
    found_.test(crosses                       ? "permuted_sections"
                : shifted && product          ? "weight_shifted"
                : is_foreign(foreign, places) ? "rows_of_wrong_rank"
                                              : "permuted_rows",
                moved_columns(from), std::move(words));
  }

  /// Every wrong row is some other token's.
  void rows() {
    if (rows_ < 2) return;
    LocalValue value{y_, F64Matrix(rows_, cols_), {}};
    Places places;
    std::size_t foreign = 0;
    for (std::int64_t m = 0; m < rows_; ++m) {
      const bool mine = rank_.owned(m, own_.front());
      std::int64_t source = m;
      if (mine && rank_.wrong().rows[static_cast<std::size_t>(m)]) {
        source = -1;
        for (std::int64_t other = 0; other < rows_ && source < 0; ++other) {
          if (other != m && rank_.same_step(m, other) && row_is(m, other)) source = other;
        }
        if (source < 0) return;
        places.push_back({m, source});
        foreign += foreign_element(m, own_.front(), source, own_.front()) ? 1 : 0;
      }
      for (std::int64_t d = 0; d < cols_; ++d) {
        value.y(m, d) = y_(source, d);
        value.budget(m, d) = rank_.budget(source, d);
      }
    }
    if (places.empty()) return;
    found_.test(is_foreign(foreign, places) ? "rows_of_wrong_rank" : "permuted_rows", value,
                fmt::format("on rank {}, {}", rank_.rank(), listed(places, "row")));
  }
  bool row_is(std::int64_t m, std::int64_t source) const {
    for (const std::int64_t d : own_) {
      const double e = std::abs(rank_.got()(m, d) - y_(source, d));
      if (!(e <= rank_.residual()->limits.a * rank_.budget(source, d))) return false;
    }
    return true;
  }

  const RankCase& rank_;
  Explanations& found_;
  const F64Matrix& y_;
  std::int64_t cols_, rows_;
  std::vector<int> givers_;                            // of a value that is only moved, by element
  std::vector<std::int64_t> local_rows_, local_cols_;  // where a row or feature was in its giver's part
  std::vector<std::int64_t> own_;                      // features of the rank, ascending
};

}  // namespace

void explain_relocated(const RankCase& rank, Explanations& found) { Relocation(rank, found).run(); }

}  // namespace shardcheck
