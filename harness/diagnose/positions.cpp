// SPDX-License-Identifier: Apache-2.0
// RoPE with other positions than the tokens', another base or scaling, the other pairing, the other direction.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "harness/diagnose/hypothesis.hpp"
#include "reference/blocks.hpp"
#include "sharded/op.hpp"

namespace shardcheck {
namespace {

using Positions = std::vector<std::int64_t>;

constexpr std::int64_t kMostRotated = std::int64_t{1}
                                      << 24;  // elements, over all positions that are tried

class RopeHypotheses {
 public:
  RopeHypotheses(const RankCase& rank, Explanations& found)
      : rank_(rank), found_(found), x_(rank.inputs()[0]), config_(rank.op().program().config) {
    const auto at = rank.op().instruction().attributes.find("head_dim");
    head_dim_ = at == rank.op().instruction().attributes.end()
                    ? config_.head_dim
                    : static_cast<std::int64_t>(at->second);
    for (const std::size_t s : rank.op().work().steps) {
      const Step& step = rank.op().run().steps[s].step;
      const Positions here = step.positions();
      positions_.insert(positions_.end(), here.begin(), here.end());
      for (std::int64_t row = 0; row < step.tokens(); ++row) in_step_.push_back(row);
    }
    frequencies_ = reference::rope_frequencies(config_.rope, head_dim_);
  }

  void run() {
    if (static_cast<std::int64_t>(positions_.size()) != x_.rows()) return;
    const int r = rank_.rank();
    const std::int64_t last = *std::max_element(positions_.begin(), positions_.end());
    test("wrong_positions", in_step_,
         fmt::format("rank {} counts positions from the step's first row", r));
    for (std::int64_t by = 1; by <= last + 1; ++by) {
      for (const std::int64_t shift : {by, -by}) {
        if (found_.has("wrong_positions")) break;
        Positions moved = positions_;
        for (std::int64_t& position : moved) position += shift;
        test("wrong_positions", moved,
             fmt::format("rank {}'s positions are {} by {}", r, shift > 0 ? "ahead" : "behind", by));
      }
    }
    if (!found_.has("wrong_positions")) per_row(last);
    found_.test(
        "wrong_convention", rotated(positions_, frequencies_, true),
        fmt::format("rank {} rotates pairs (2i, 2i + 1), the model (i, i + {})", r, head_dim_ / 2));
    std::vector<double> back = frequencies_;
    for (double& f : back) f = -f;
    found_.test("wrong_convention", rotated(positions_, back, false),
                fmt::format("rank {} rotates the other way round", r));
    bases();
  }

 private:
  LocalValue rotated(const Positions& positions, const std::vector<double>& frequencies,
                     bool interleaved) const {
    LocalValue value{F64Matrix(x_.rows(), x_.cols()), F64Matrix(x_.rows(), x_.cols()), {}};
    const std::int64_t half = head_dim_ / 2;
    const double u = rank_.op().out_roundoff();
    const F64Matrix& y = rank_.expected().y;
    for (std::int64_t m = 0; m < x_.rows(); ++m) {
      for (std::int64_t head = 0; head + head_dim_ <= x_.cols(); head += head_dim_) {
        for (std::int64_t i = 0; i < half; ++i) {
          const std::int64_t a = head + (interleaved ? 2 * i : i),
                             b = head + (interleaved ? 2 * i + 1 : i + half);
          const double angle = static_cast<double>(positions[static_cast<std::size_t>(m)]) *
                               frequencies[static_cast<std::size_t>(i)];
          value.y(m, a) = x_(m, a) * std::cos(angle) - x_(m, b) * std::sin(angle);
          value.y(m, b) = x_(m, b) * std::cos(angle) + x_(m, a) * std::sin(angle);
          for (const std::int64_t d : {a, b})
            value.budget(m, d) = std::max(rank_.budget(m, a), rank_.budget(m, b)) +
                                 u * std::abs(value.y(m, d) - y(m, d));
        }
      }
    }
    return value;
  }

  void test(std::string_view cause, const Positions& positions, std::string sentence) {
    if (positions != positions_)
      found_.test(cause, rotated(positions, frequencies_, false), std::move(sentence));
  }

  /// Any position for every wrong row.
  void per_row(std::int64_t last) {
    if (last * x_.rows() * x_.cols() > kMostRotated) return;
    Positions from = positions_;
    std::vector<LocalValue> at;
    for (std::int64_t p = 0; p <= 2 * last + 1; ++p) {
      at.push_back(rotated(Positions(positions_.size(), p), frequencies_, false));
    }
    std::int64_t moved = 0, first = -1;
    for (std::size_t m = 0; m < from.size(); ++m) {
      if (!rank_.wrong().rows[m]) continue;
      std::int64_t source = -1;
      for (std::size_t p = 0; p < at.size() && source < 0; ++p) {
        bool fits = true;
        const auto row = static_cast<std::int64_t>(m);
        for (std::int64_t d = 0; d < x_.cols() && fits; ++d) {
          if (!rank_.owned(row, d)) continue;
          fits = std::abs(rank_.got()(row, d) - at[p].y(row, d)) <=
                 rank_.residual()->limits.a * at[p].budget(row, d);
        }
        if (fits) source = static_cast<std::int64_t>(p);
      }
      if (source < 0) return;
      if (moved++ == 0) first = static_cast<std::int64_t>(m);
      from[m] = source;
    }
    // Position 0 everywhere is no rotation at all: the op was skipped.
    bool rotates = false;
    for (std::size_t m = 0; m < from.size(); ++m)
      rotates = rotates || (from[m] != positions_[m] && from[m] != 0);
    if (!rotates) return;
    test("wrong_positions", from,
         fmt::format("rank {} gives {} tokens other positions: row {}, position {}, has {}",
                     rank_.rank(), moved, first, positions_[static_cast<std::size_t>(first)],
                     from[static_cast<std::size_t>(first)]));
  }

  void bases() {
    const auto test_rope = [&](const RopeConfig& rope, std::string words) {
      const std::vector<double> other = reference::rope_frequencies(rope, head_dim_);
      if (other != frequencies_)
        found_.test("wrong_convention", rotated(positions_, other, false),
                    fmt::format("rank {} uses {}", rank_.rank(), words));
    };
    RopeConfig plain = config_.rope;
    plain.type = RopeConfig::Type::standard;
    test_rope(plain, "frequencies without the config's scaling");
    for (const double theta : {10000.0, 500000.0, 1000000.0}) {
      RopeConfig other = config_.rope;
      other.theta = theta;
      test_rope(other, fmt::format("base {:g} in place of {:g}", theta, config_.rope.theta));
    }
    // Frequencies of another head width: the hidden size per head, or a rank's.
    for (const std::int64_t width : {config_.hidden_size / std::max<std::int64_t>(config_.num_heads, 1),
                                     2 * head_dim_, head_dim_ / 2}) {
      if (width == head_dim_ || width < 2) continue;
      std::vector<double> other = reference::rope_frequencies(config_.rope, width);
      other.resize(frequencies_.size(), 0.0);
      found_.test("wrong_convention", rotated(positions_, other, false),
                  fmt::format("rank {} uses the frequencies of heads of {}", rank_.rank(), width));
    }
  }

  const RankCase& rank_;
  Explanations& found_;
  const F64Matrix& x_;
  const Config& config_;
  std::int64_t head_dim_;
  Positions positions_, in_step_;
  std::vector<double> frequencies_;
};

}  // namespace

void explain_positions(const RankCase& rank, Explanations& found) {
  if (rank.op().op() == "rope" && !rank.inputs().empty()) RopeHypotheses(rank, found).run();
}

}  // namespace shardcheck
