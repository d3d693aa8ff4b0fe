// SPDX-License-Identifier: Apache-2.0
// Norms with another statistic: of a shard, over another divisor, with another epsilon, with or without the mean, of other
// weights. Each row of y is then another multiple of what it should be.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <set>

#include "harness/diagnose/hypothesis.hpp"

namespace shardcheck {
namespace {

using Row = std::vector<double>;

double mean_square(std::span<const double> x) {
  double sum = 0.0;
  for (const double v : x) sum += v * v;
  return x.empty() ? 0.0 : sum / static_cast<double>(x.size());
}

class NormHypotheses {
 public:
  NormHypotheses(const RankCase& rank, Explanations& found)
      : rank_(rank), found_(found), x_(rank.inputs()[0]), layer_(rank.op().op() == "layer_norm") {
    const FailedOp& op = rank.op();
    const auto at = op.instruction().attributes.find("eps");
    eps_ = at == op.instruction().attributes.end() ? 0.0 : at->second;
    gain_ = op.weights().vector(op.module()->weight());
    if (layer_) shift_ = op.weights().vector(op.module()->bias());
    width_ = op.op() == "head_norm" ? static_cast<std::int64_t>(gain_.size()) : x_.cols();
  }

  void run() {
    if (width_ < 2 || x_.cols() % width_ != 0 || x_.cols() != rank_.got().cols()) return;
    const int r = rank_.rank();
    std::set<int> sizes{rank_.op().ranks()};
    for (const Mesh::Axis& axis : rank_.op().run().mesh.axes) sizes.insert(axis.size);
    sizes.erase(1);
    held_features();
    for (const int size : sizes) shards(size);
    const double d = static_cast<double>(width_);
    for (const int size : sizes) {
      divisor(d / size,
              fmt::format("rank {} divides the sum of squares by {} / {} features", r, width_, size));
      divisor(
          d * size,
          fmt::format(
              "rank {} divides the sum of squares by {} x {} features, or summed a {}th of them", r,
              width_, size, size));
    }
    divisor(d - 1.0, fmt::format("rank {} divides by {} - 1", r, width_));
    divisor(1.0, fmt::format("rank {} doesn't divide the sum of squares", r));
    std::vector<double> others{0.0, 1e-5, 1e-6, 1e-8, 1e-12};
    for (int power = -4; power <= 4; ++power) others.push_back(eps_ * std::pow(10.0, power));
    for (const double eps : others) {
      if (eps != eps_)
        test(
            "wrong_divisor", d, eps, [](std::span<const double> row) { return row; },
            fmt::format("rank {} adds epsilon {:g}, the model {:g}", r, eps, eps_));
    }
    found_.test("wrong_divisor", outside_epsilon(),
                fmt::format("rank {} adds epsilon after the root", r));
    weights();
    other_mean();
    per_row();
  }

 private:
  using Choose = std::function<std::span<const double>(std::span<const double>)>;

  /// 1 / sqrt(sum of squares of the chosen features / divisor + eps), of one group of features.
  double inverse(std::span<const double> group, const Choose& choose, double divisor, double eps) const {
    const std::span<const double> chosen = choose(group);
    const double mean = layer_ ? mean_of(chosen) : 0.0;
    double squares = 0.0;
    for (const double v : chosen) squares += (v - mean) * (v - mean);
    return 1.0 / std::sqrt(squares / divisor + eps);
  }
  static double mean_of(std::span<const double> x) {
    double sum = 0.0;
    for (const double v : x) sum += v;
    return x.empty() ? 0.0 : sum / static_cast<double>(x.size());
  }

  /// The norm whose inverse deviation and mean a function gives for a group of features.
  LocalValue with(const std::function<std::pair<double, double>(std::span<const double>)>& statistic) const {
    LocalValue value{F64Matrix(x_.rows(), x_.cols()), F64Matrix(x_.rows(), x_.cols()), {}};
    const F64Matrix& y = rank_.expected().y;
    const double u = rank_.op().out_roundoff();
    for (std::int64_t m = 0; m < x_.rows(); ++m) {
      for (std::int64_t begin = 0; begin < x_.cols(); begin += width_) {
        const std::span<const double> group = x_.row(m).subspan(static_cast<std::size_t>(begin),
                                                                static_cast<std::size_t>(width_));
        const auto [scale, mean] = statistic(group);
        const double right = 1.0 / std::sqrt(variance(group) + eps_);
        for (std::int64_t i = 0; i < width_; ++i) {
          const auto d = static_cast<std::size_t>(i);
          value.y(m, begin + i) = (group[d] - mean) * scale * gain_[d % gain_.size()] +
                                  (layer_ ? shift_[d] : 0.0);
          // The same roundings, of numbers that are that much larger.
          value.budget(m, begin + i) = rank_.budget(m, begin + i) * std::max(1.0, scale / right) +
                                       u * std::abs(value.y(m, begin + i) - y(m, begin + i));
        }
      }
    }
    return value;
  }
  double variance(std::span<const double> group) const {
    const double mean = layer_ ? mean_of(group) : 0.0;
    return mean_square(group) - mean * mean;
  }

  void test(std::string_view cause, double divisor, double eps, const Choose& choose,
            std::string sentence) {
    found_.test(cause, with([&](std::span<const double> group) {
                  return std::pair{inverse(group, choose, divisor, eps),
                                   layer_ ? mean_of(choose(group)) : 0.0};
                }),
                std::move(sentence));
  }
  void divisor(double by, std::string sentence) {
    test(
        "wrong_divisor", by, eps_, [](std::span<const double> row) { return row; },
        std::move(sentence));
  }

  /// The features that a rank holds, its own first: of the value, or of the linear that the norm reads.
  void held_features() {
    const FailedOp& op = rank_.op();
    const Module* const source = op.program().find_module(op.inputs()[0].name());
    for (int i = 0; i < op.ranks(); ++i) {
      const int owner = (rank_.rank() + i) % op.ranks();
      std::vector<Ranges> held{op.output().layout().feature_ranges(owner),
                               op.inputs()[0].layout().feature_ranges(owner)};
      if (source != nullptr && source->out == x_.cols())
        held.push_back(op.program().plan.rows_of(*source, owner));
      for (const Ranges& features : held) {
        const auto count = static_cast<double>(total(features));
        if (features.empty() || (total(features) == x_.cols() && width_ == x_.cols())) continue;
        const std::string words = fmt::format(
            "rank {} takes the statistic of features {} alone, those that rank {} holds",
            rank_.rank(), to_string(features), owner);
        found_.test("statistic_of_shard", of_features(features, count), words);
        found_.test("statistic_of_shard", of_features(features, static_cast<double>(x_.cols())),
                    words + ", divided by all features");
      }
    }
  }
  LocalValue of_features(const Ranges& features, double divisor) const {
    LocalValue value{F64Matrix(x_.rows(), x_.cols()), F64Matrix(x_.rows(), x_.cols()), {}};
    const double u = rank_.op().out_roundoff();
    for (std::int64_t m = 0; m < x_.rows(); ++m) {
      Row chosen;
      for (const Range& range : features) {
        for (std::int64_t d = range.begin; d < range.end; ++d) chosen.push_back(x_(m, d));
      }
      const Choose all = [](std::span<const double> row) { return row; };
      const double scale = inverse(chosen, all, divisor, eps_), mean = layer_ ? mean_of(chosen) : 0.0;
      for (std::int64_t d = 0; d < x_.cols(); ++d) {
        const auto i = static_cast<std::size_t>(d) % gain_.size();
        value.y(m, d) = (x_(m, d) - mean) * scale * gain_[i] + (layer_ ? shift_[i] : 0.0);
        const double right = rank_.expected().y(m, d);
        const double larger = right == 0.0 ? 1.0 : std::max(1.0, std::abs(value.y(m, d) / right));
        value.budget(m, d) = rank_.budget(m, d) * larger + u * std::abs(value.y(m, d) - right);
      }
    }
    return value;
  }

  void shards(int count) {
    if (width_ < count) return;
    const Partition cut = Partition::balanced(width_, count);
    const int r = rank_.rank();
    for (int i = 0; i < count; ++i) {
      const int shard = (r + i) % count;  // the rank's own first
      const Ranges part = cut.of(shard);
      const Choose choose = [&](std::span<const double> row) {
        return row.subspan(static_cast<std::size_t>(part[0].begin),
                           static_cast<std::size_t>(part[0].size()));
      };
      const std::string words = fmt::format(
          "rank {} takes the statistic of features {} alone, a shard of {}", r, to_string(part), count);
      test("statistic_of_shard", static_cast<double>(part[0].size()), eps_, choose, words);
      test("statistic_of_shard", static_cast<double>(width_), eps_, choose,
           words + ", divided by all features");
    }
    // Every shard by its own.
    LocalValue value{rank_.expected().y, F64Matrix(x_.rows(), x_.cols()), {}};
    for (int shard = 0; shard < count; ++shard) {
      const Range part = cut.of(shard)[0];
      const LocalValue own = with([&](std::span<const double> group) {
        const auto chosen = group.subspan(static_cast<std::size_t>(part.begin),
                                          static_cast<std::size_t>(part.size()));
        const Choose all = [](std::span<const double> row) { return row; };
        return std::pair{inverse(chosen, all, static_cast<double>(part.size()), eps_),
                         layer_ ? mean_of(chosen) : 0.0};
      });
      for (std::int64_t m = 0; m < x_.rows(); ++m) {
        for (std::int64_t d = 0; d < x_.cols(); ++d) {
          if (d % width_ < part.begin || d % width_ >= part.end) continue;
          value.y(m, d) = own.y(m, d);
          value.budget(m, d) = own.budget(m, d);
        }
      }
    }
    found_.test("statistic_of_shard", value,
                fmt::format("rank {} takes the statistic of each of {} shards by itself", r, count));
    const std::int64_t head = rank_.op().program().config.head_dim;
    if (width_ == x_.cols() && width_ % head == 0 && width_ > head) {
      LocalValue by_head = value;
      for (std::int64_t m = 0; m < x_.rows(); ++m) {
        for (std::int64_t begin = 0; begin < x_.cols(); begin += head) {
          const auto group = x_.row(m).subspan(static_cast<std::size_t>(begin),
                                               static_cast<std::size_t>(head));
          const double scale = 1.0 / std::sqrt(variance(group) + eps_);
          const double mean = layer_ ? mean_of(group) : 0.0;
          for (std::int64_t i = 0; i < head; ++i) {
            const auto d = static_cast<std::size_t>(begin + i);
            by_head.y(m, begin + i) = (x_(m, begin + i) - mean) * scale * gain_[d] +
                                      (layer_ ? shift_[d] : 0.0);
          }
        }
      }
      found_.test("statistic_of_shard", by_head,
                  fmt::format("rank {} takes the statistic of each head by itself", r));
    }
  }

  LocalValue outside_epsilon() const {
    return with([this](std::span<const double> group) {
      return std::pair{1.0 / (std::sqrt(variance(group)) + eps_), layer_ ? mean_of(group) : 0.0};
    });
  }

  void weights() {
    LocalValue bare = rank_.expected(), more = rank_.expected(), unshifted = rank_.expected();
    const double u = rank_.op().out_roundoff();
    for (std::int64_t m = 0; m < x_.rows(); ++m) {
      for (std::int64_t d = 0; d < x_.cols(); ++d) {
        const auto i = static_cast<std::size_t>(d % width_) % gain_.size();
        const double beta = layer_ ? shift_[i] : 0.0;
        const double normed = (bare.y(m, d) - beta) / gain_[i];
        bare.y(m, d) = normed + beta;
        more.y(m, d) += normed;
        unshifted.y(m, d) -= beta;
        for (LocalValue* value : {&bare, &more, &unshifted})
          value->budget(m, d) = rank_.budget(m, d) * std::max(1.0, 1.0 / std::abs(gain_[i])) +
                                u * std::abs(value->y(m, d));
      }
    }
    const std::string& tensor = rank_.op().module()->path;
    found_.test("operand_missing", bare,
                fmt::format("rank {} doesn't multiply with {}.weight", rank_.rank(), tensor));
    found_.test("wrong_function", more,
                fmt::format("rank {} multiplies with 1 + {}.weight", rank_.rank(), tensor));
    if (layer_)
      found_.test("bias_missing", unshifted,
                  fmt::format("rank {} doesn't add {}.bias", rank_.rank(), tensor));
  }

  void other_mean() {
    const bool takes = !layer_;
    found_.test("wrong_function", with([&](std::span<const double> group) {
                  const double mean = mean_of(group);
                  const double square = takes ? mean_square(group) - mean * mean : mean_square(group);
                  return std::pair{1.0 / std::sqrt(square + eps_), takes ? mean : 0.0};
                }),
                takes ? "equals the norm with the mean taken away first"
                      : "equals the norm without the mean taken away");
  }

  /// A factor of its own for every wrong row, before the bias: whatever its statistic was, only that is wrong.
  void per_row() {
    if (width_ != x_.cols() || total(rank_.features()) < 2) return;
    const double u = rank_.op().out_roundoff();
    const auto shift = [this](std::int64_t d) {
      return layer_ ? shift_[static_cast<std::size_t>(d)] : 0.0;
    };
    double least = 0.0, most = 0.0;
    LocalValue value = rank_.expected();
    bool first = true;
    for (std::int64_t m = 0; m < x_.rows(); ++m) {
      if (!rank_.wrong().rows[static_cast<std::size_t>(m)]) continue;
      double products = 0.0, squares = 0.0;
      for (std::int64_t d = 0; d < x_.cols(); ++d) {
        if (!rank_.owned(m, d)) continue;
        const double y = value.y(m, d) - shift(d);
        products += (rank_.got()(m, d) - shift(d)) * y;
        squares += y * y;
      }
      const double factor = products / squares;
      least = first ? factor : std::min(least, factor);
      most = first ? factor : std::max(most, factor);
      first = false;
      for (std::int64_t d = 0; d < x_.cols(); ++d) {
        const double before = value.y(m, d);
        value.y(m, d) = factor * (before - shift(d)) + shift(d);
        value.budget(m, d) *= std::max(1.0, std::abs(factor));
        if (layer_) value.budget(m, d) += u * std::abs(value.y(m, d) - before);
      }
    }
    if (first || !std::isfinite(least + most)) return;
    found_.test("wrong_divisor", value,
                fmt::format("on rank {} every row is a multiple of what it should be, {:.6g} to "
                            "{:.6g}: its statistic is wrong",
                            rank_.rank(), least, most));
  }

  const RankCase& rank_;
  Explanations& found_;
  const F64Matrix& x_;
  bool layer_;
  double eps_ = 0.0;
  std::vector<double> gain_, shift_;
  std::int64_t width_ = 0;
};

/// A sum of squares over other features than those that count on the rank.
void explain_statistic(const RankCase& rank, Explanations& found) {
  const FailedOp& op = rank.op();
  const TapReader& input = op.inputs().front();
  for (int i = 0; i < op.ranks(); ++i) {
    const int owner = (rank.rank() + i) % op.ranks();  // its own first
    const Ranges features = input.layout().feature_ranges(owner);
    const auto value = rank.recompute(
        [&](LocalCall& call, Instruction&, Config&) { call.weight_rows = features; });
    if (value && found.test("statistic_of_shard", *value,
                            fmt::format("rank {} sums the squares of features {} of {}, those that "
                                        "rank {} holds",
                                        rank.rank(), to_string(features), input.name(), owner)))
      return;
  }
}

}  // namespace

void explain_norms(const RankCase& rank, Explanations& found) {
  const FailedOp& op = rank.op();
  if (op.module() == nullptr || op.module()->kind != ModuleKind::norm) return;
  if (op.op().empty()) return;
  if (op.op() == "rms_norm" || op.op() == "head_norm" || op.op() == "layer_norm")
    NormHypotheses(rank, found).run();
  if (op.op() == "rms_statistic") explain_statistic(rank, found);
  if (found.empty()) explain_any_factor(rank, found);
}

}  // namespace shardcheck
