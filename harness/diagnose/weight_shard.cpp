// SPDX-License-Identifier: Apache-2.0
#include "harness/diagnose/weight_shard.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <map>
#include <optional>
#include <set>
#include <unordered_map>
#include <vector>

namespace shardcheck {
namespace {

constexpr std::int64_t kLargestSearched = std::int64_t{1}
                                          << 27;  // elements of a weight that is searched line by line

std::vector<std::int64_t> indices(const Ranges& ranges) {
  std::vector<std::int64_t> all;
  for (const Range& range : ranges) {
    for (std::int64_t i = range.begin; i < range.end; ++i) all.push_back(i);
  }
  return all;
}

/// Lines (rows or columns) of a matrix by the bits of the elements that are looked at.
using Line = std::vector<double>;
struct LineHash {
  std::size_t operator()(const Line& line) const {
    std::size_t hash = 1469598103934665603u;
    for (const double v : line) hash = (hash ^ std::bit_cast<std::uint64_t>(v)) * 1099511628211u;
    return hash;
  }
};
struct LineEqual {
  bool operator()(const Line& a, const Line& b) const {
    return std::equal(a.begin(), a.end(), b.begin(), b.end(), [](double x, double y) {
      return std::bit_cast<std::uint64_t>(x) == std::bit_cast<std::uint64_t>(y);
    });
  }
};

class Shard {
 public:
  Shard(const Program& program, WeightStore& weights, const Module& module, bool bias, int rank,
        const HostTensor& shard)
      : program_(program),
        weights_(weights),
        module_(module),
        vector_(bias || module.kind == ModuleKind::norm),
        bias_(bias),
        rank_(rank),
        tensor_(bias ? module.bias() : module.weight()),
        whole_(weights.whole(tensor_)),
        dtype_(shard.dtype()),
        cols_of_whole_(vector_ ? whole_.elements() : whole_.cols()),
        shard_(shard.to_f64()),
        rows_(indices(row_ranges(rank))),
        cols_(indices(col_ranges(rank))) {}

  ShardFault explain() const {
    if (const auto fault = of_another_rank()) return *fault;
    if (const auto fault = of_another_module()) return *fault;
    if (whole_.elements() <= kLargestSearched) {
      if (const auto fault = transposed()) return *fault;
      if (const auto fault = moved_lines(!vector_)) return *fault;
      if (!vector_) {
        if (const auto fault = moved_lines(false)) return *fault;
      }
    }
    return other_numbers();
  }

 private:
  // A vector is one row.
  Ranges row_ranges(int rank) const {
    return vector_ ? Ranges{{0, 1}} : program_.plan.rows_of(module_, rank);
  }
  Ranges col_ranges(int rank) const {
    return vector_ ? program_.plan.rows_of(module_, rank) : program_.plan.cols_of(module_, rank);
  }
  double whole(std::int64_t row, std::int64_t col) const {
    return whole_.at(row * cols_of_whole_ + col);
  }
  double got(std::size_t row, std::size_t col) const { return shard_[row * cols_.size() + col]; }
  static bool same(double a, double b) {
    return std::bit_cast<std::uint64_t>(a) == std::bit_cast<std::uint64_t>(b);
  }

  bool is_slice(const HostTensor& of, const std::vector<std::int64_t>& rows,
                const std::vector<std::int64_t>& cols) const {
    if (rows.size() != rows_.size() || cols.size() != cols_.size()) return false;
    for (std::size_t r = 0; r < rows.size(); ++r) {
      for (std::size_t c = 0; c < cols.size(); ++c) {
        if (!same(got(r, c), of.at(rows[r] * cols_of_whole_ + cols[c]))) return false;
      }
    }
    return true;
  }

  bool is_kv() const { return module_.role == ModuleRole::k || module_.role == ModuleRole::v; }

  std::optional<ShardFault> of_another_rank() const {
    for (int other = 0; other < program_.mesh.ranks(); ++other) {
      if (other == rank_ || !is_slice(whole_, indices(row_ranges(other)), indices(col_ranges(other))))
        continue;
      return ShardFault{is_kv() ? "kv_head_of_neighbour" : "weight_of_wrong_rank",
                        fmt::format("rank {} holds rank {}'s shard of {}", rank_, other, tensor_)};
    }
    return std::nullopt;
  }

  std::optional<ShardFault> of_another_module() const {
    for (const Module& other : program_.modules) {
      if (other.path == module_.path || other.out != module_.out || other.in != module_.in ||
          other.kind != module_.kind)
        continue;
      if (bias_ && !other.has_bias) continue;
      const std::string tensor = bias_ ? other.bias() : other.weight();
      if (is_slice(weights_.whole(tensor), rows_, cols_))
        return ShardFault{"weight_of_wrong_module",
                          fmt::format("rank {} holds {} in place of {}", rank_, tensor, tensor_)};
    }
    return std::nullopt;
  }

  std::optional<ShardFault> transposed() const {
    if (vector_ || whole_.rows() != whole_.cols()) return std::nullopt;
    for (std::size_t r = 0; r < rows_.size(); ++r) {
      for (std::size_t c = 0; c < cols_.size(); ++c) {
        if (!same(got(r, c), whole(cols_[c], rows_[r]))) return std::nullopt;
      }
    }
    return ShardFault{"weight_transposed",
                      fmt::format("rank {} holds its slice of {} transposed", rank_, tensor_)};
  }

  /// Every row (column) of the shard is some row (column) of the whole.
  std::optional<ShardFault> moved_lines(bool by_rows) const {
    const std::vector<std::int64_t>& own = by_rows ? rows_ : cols_;
    const std::int64_t extent = by_rows ? whole_.rows() : cols_of_whole_;
    std::unordered_map<Line, std::vector<std::int64_t>, LineHash, LineEqual> where;
    for (std::int64_t i = 0; i < extent; ++i) {
      Line line;
      for (const std::int64_t j : by_rows ? cols_ : rows_)
        line.push_back(by_rows ? whole(i, j) : whole(j, i));
      where[std::move(line)].push_back(i);
    }
    std::vector<std::int64_t> from;
    std::int64_t distance = 0;
    for (std::size_t i = 0; i < own.size(); ++i) {
      Line line;
      for (std::size_t j = 0; j < (by_rows ? cols_ : rows_).size(); ++j)
        line.push_back(by_rows ? got(i, j) : got(j, i));
      const auto found = where.find(line);
      if (found == where.end()) return std::nullopt;
      // Equal lines: in its own place if one stands there, else as far off as the line before.
      const std::vector<std::int64_t>& all = found->second;
      const auto prefer = [&](std::int64_t index) {
        return std::find(all.begin(), all.end(), index) != all.end();
      };
      from.push_back(prefer(own[i])              ? own[i]
                     : prefer(own[i] + distance) ? own[i] + distance
                                                 : all.front());
      distance = from.back() - own[i];
    }
    return classify(own, from, by_rows || vector_);
  }

  ModuleRole role_at(std::int64_t row) const {
    for (const Section& section : module_.sections) {
      if (section.begin <= row && row < section.end) return section.role;
    }
    return module_.role;
  }

  ShardFault classify(const std::vector<std::int64_t>& own, const std::vector<std::int64_t>& from,
                      bool outputs) const {
    const std::int64_t head = program_.config.head_dim;
    std::set<std::int64_t> distances;
    std::int64_t wrong = 0, first = -1, first_from = -1;
    bool foreign = false, whole_heads = true, crosses = false, kv = outputs, heads = true;
    for (std::size_t i = 0; i < own.size(); ++i) {
      if (own[i] == from[i]) continue;
      if (wrong++ == 0) {
        first = own[i];
        first_from = from[i];
      }
      distances.insert(from[i] - own[i]);
      foreign = foreign || std::find(own.begin(), own.end(), from[i]) == own.end();
      whole_heads = whole_heads && (from[i] - own[i]) % head == 0;
      crosses = crosses || role_at(own[i]) != role_at(from[i]);
      const ModuleRole role = role_at(own[i]);
      kv = kv && (role == ModuleRole::k || role == ModuleRole::v);
      heads = heads && (role == ModuleRole::q || role == ModuleRole::k || role == ModuleRole::v ||
                        role == ModuleRole::o);
    }
    whole_heads = whole_heads && wrong % head == 0 && heads;
    const std::string words = fmt::format(
        "{} of the {} {} of {} on rank {} are others of the whole: {} is {}", wrong, own.size(),
        vector_   ? "elements"
        : outputs ? "rows"
                  : "columns",
        tensor_, rank_, first, first_from);
    if (kv && whole_heads && !crosses) return {"kv_head_of_neighbour", words};
    if (outputs && crosses) return {"permuted_sections", words};
    if (whole_heads && !foreign) return {"permuted_heads", words};
    if (distances.size() == 1) return {"weight_shifted", words};
    return {foreign ? "weight_of_wrong_rank" : "permuted_rows", words};
  }

  ShardFault other_numbers() const {
    std::int64_t differ = 0, zeros = 0, poison = 0;
    std::size_t row = 0, col = 0;
    std::vector<double> expected;
    for (std::size_t r = 0; r < rows_.size(); ++r) {
      for (std::size_t c = 0; c < cols_.size(); ++c) {
        expected.push_back(whole(rows_[r], cols_[c]));
        if (same(got(r, c), expected.back())) continue;
        if (differ++ == 0) row = r, col = c;
        zeros += got(r, c) == 0.0 ? 1 : 0;
        poison += std::isnan(got(r, c)) ? 1 : 0;
      }
    }
    const auto all = static_cast<std::int64_t>(shard_.size());
    if (poison > 0)
      return {"never_written", fmt::format("{} of {} elements of {} on rank {} were never loaded",
                                           poison, all, tensor_, rank_)};
    if (zeros == differ)
      return {"shard_dropped",
              fmt::format("{} of {} elements of {} on rank {} are 0", zeros, all, tensor_, rank_)};
    for (const DType coarse : {DType::f32, DType::f16, DType::bf16}) {
      if (unit_roundoff(coarse) <= unit_roundoff(dtype_)) continue;
      if (LineEqual{}(shard_, round_to(coarse, {all}, expected).to_f64()))
        return {"precision_too_low",
                fmt::format("{} on rank {} is rounded to {}", tensor_, rank_, name(coarse))};
    }
    if (bias_) {
      for (int n = 2; n <= program_.mesh.ranks(); ++n) {
        for (const double factor : {static_cast<double>(n), 1.0 / n}) {
          std::vector<double> scaled = expected;
          for (double& v : scaled) v *= factor;
          if (LineEqual{}(shard_, round_to(dtype_, {all}, scaled).to_f64()))
            return {"bias_times_tp",
                    fmt::format("{} on rank {} is {:.4g} times the model's", tensor_, rank_, factor)};
        }
      }
    }
    return {"weight_differs", fmt::format("{} of {} elements of {} on rank {} differ, the first at "
                                          "[{}, {}]: {:.9g}, the whole has {:.9g}",
                                          differ, all, tensor_, rank_, rows_[row], cols_[col],
                                          got(row, col), whole(rows_[row], cols_[col]))};
  }

  const Program& program_;
  WeightStore& weights_;
  const Module& module_;
  bool vector_, bias_;
  int rank_;
  std::string tensor_;
  HostTensor whole_;
  DType dtype_;
  std::int64_t cols_of_whole_;
  std::vector<double> shard_;
  std::vector<std::int64_t> rows_, cols_;
};

}  // namespace

ShardFault explain_shard(const Program& program, WeightStore& weights, const Module& module,
                         bool bias, int rank, const HostTensor& shard) {
  return Shard(program, weights, module, bias, rank, shard).explain();
}

}  // namespace shardcheck
