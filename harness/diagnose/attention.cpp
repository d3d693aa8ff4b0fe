// SPDX-License-Identifier: Apache-2.0
// Attention that sees other keys, scales its scores otherwise, or reads another kv head.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <set>

#include "harness/diagnose/hypothesis.hpp"
#include "reference/blocks.hpp"
#include "sharded/op.hpp"

namespace shardcheck {
namespace {

/// How a hypothesis differs from the model.
struct Variant {
  std::int64_t window = 0;
  std::int64_t ahead = 0;  // queries stand this much further on
  bool causal = true;
  double scale = 1.0;
  std::vector<std::int64_t> kv_heads;  // of every q head
  bool exchanged = false;              // k for v and v for k
  std::function<bool(std::int64_t key, std::int64_t first, std::int64_t end)> sees = {};  // of positions; null: all
};

class AttentionHypotheses {
 public:
  AttentionHypotheses(const RankCase& rank, Explanations& found)
      : rank_(rank), op_(rank.op()), found_(found) {
    const auto attribute = [&](std::string_view name) {
      const auto at = op_.instruction().attributes.find(name);
      return at == op_.instruction().attributes.end() ? 0.0 : at->second;
    };
    d_ = static_cast<std::int64_t>(attribute("head_dim"));
    heads_ = static_cast<std::int64_t>(attribute("num_heads"));
    kv_heads_ = static_cast<std::int64_t>(attribute("num_kv_heads"));
    right_.window = cache_window_ = static_cast<std::int64_t>(attribute("window"));
    right_.scale = attribute("scale");
    for (std::int64_t h = 0; h < heads_; ++h)
      right_.kv_heads.push_back(
          h / std::max<std::int64_t>(1, heads_ / std::max<std::int64_t>(1, kv_heads_)));
  }

  void run() {
    if (rank_.inputs().size() < 3 || d_ < 1 || kv_heads_ < 1 || heads_ % kv_heads_ != 0) return;
    if (rank_.inputs()[0].cols() != heads_ * d_ || rank_.inputs()[1].cols() != kv_heads_ * d_)
      return;
    kv_heads();
    masks();
    scales();
    shards();
    Variant exchanged = right_;
    exchanged.exchanged = true;
    test("operands_exchanged", exchanged,
         fmt::format("rank {} takes keys for values and values for keys", rank_.rank()));
  }

 private:
  LocalValue value(const Variant& variant) const {
    const F64Matrix& q = rank_.inputs()[0];
    const F64Matrix& k = rank_.inputs()[variant.exchanged ? 2 : 1];
    const F64Matrix& v = rank_.inputs()[variant.exchanged ? 1 : 2];
    LocalValue out{rank_.expected().y, F64Matrix(q.rows(), q.cols()), {}};
    std::int64_t q_row = 0, k_row = 0;
    for (const std::size_t s : op_.work().steps) {
      const Step& step = op_.run().steps[s].step;
      const std::vector<Range> visible = visible_positions(step, cache_window_);
      for (std::size_t i = 0; i < visible.size(); ++i) {
        const StepSequence& part = step.sequences[i];
        std::vector<std::int64_t> rows, k_positions, q_positions;
        for (std::int64_t p = visible[i].begin; p < visible[i].end; ++p) {
          if (variant.sees && !variant.sees(p, part.first, visible[i].end)) continue;
          rows.push_back(k_row + p - visible[i].begin);
          k_positions.push_back(p);
        }
        for (std::int64_t m = 0; m < part.count; ++m)
          q_positions.push_back(variant.causal ? part.first + m + variant.ahead : visible[i].end);
        for (std::int64_t h = 0; h < heads_; ++h) {
          if (!rank_.owned(q_row, h * d_) && part.count > 0 &&
              !rank_.owned(q_row + part.count - 1, h * d_))
            continue;
          const std::int64_t kv = variant.kv_heads[static_cast<std::size_t>(h)];
          const F64Matrix y = reference::attention_head(
              piece(q, q_row, part.count, h), picked(k, rows, kv), picked(v, rows, kv), q_positions,
              k_positions, variant.scale, variant.causal ? variant.window : 0);
          for (std::int64_t m = 0; m < part.count; ++m) {
            for (std::int64_t c = 0; c < d_; ++c) out.y(q_row + m, h * d_ + c) = y(m, c);
          }
        }
        q_row += part.count;
        k_row += visible[i].size();
      }
    }
    // The same arithmetic on other numbers: as much of its own error, and the rounding of the new result.
    const double u = op_.out_roundoff();
    for (std::int64_t m = 0; m < out.y.rows(); ++m) {
      for (std::int64_t c = 0; c < out.y.cols(); ++c)
        out.budget(m, c) = rank_.budget(m, c) + u * std::abs(out.y(m, c) - rank_.expected().y(m, c));
    }
    return out;
  }
  F64Matrix piece(const F64Matrix& x, std::int64_t row, std::int64_t count, std::int64_t head) const {
    F64Matrix part(count, d_);
    for (std::int64_t m = 0; m < count; ++m)
      std::copy_n(x.row(row + m).begin() + head * d_, d_, part.row(m).begin());
    return part;
  }
  F64Matrix picked(const F64Matrix& x, const std::vector<std::int64_t>& rows, std::int64_t head) const {
    F64Matrix part(static_cast<std::int64_t>(rows.size()), d_);
    for (std::size_t m = 0; m < rows.size(); ++m)
      std::copy_n(x.row(rows[m]).begin() + head * d_, d_,
                  part.row(static_cast<std::int64_t>(m)).begin());
    return part;
  }
  void test(std::string_view cause, const Variant& variant, std::string sentence) {
    found_.test(cause, value(variant), std::move(sentence));
  }

  /// Every wrong q head with another kv head; the same for all its tokens.
  void kv_heads() {
    if (kv_heads_ < 2) return;
    std::vector<LocalValue> all;
    for (std::int64_t kv = 0; kv < kv_heads_; ++kv) {
      Variant variant = right_;
      variant.kv_heads.assign(static_cast<std::size_t>(heads_), kv);
      all.push_back(value(variant));
    }
    LocalValue mixed = rank_.expected();
    std::string words;
    for (std::int64_t h = 0; h < heads_; ++h) {
      const auto is = [&](const LocalValue& y) {
        for (std::int64_t m = 0; m < y.y.rows(); ++m) {
          for (std::int64_t c = h * d_; c < (h + 1) * d_; ++c) {
            if (!rank_.owned(m, c) || !rank_.wrong().rows[static_cast<std::size_t>(m)]) continue;
            if (!(std::abs(rank_.got()(m, c) - y.y(m, c)) <=
                  rank_.residual()->limits.a * y.budget(m, c)))
              return false;
          }
        }
        return true;
      };
      if (is(rank_.expected())) continue;
      std::int64_t source = -1;
      for (std::int64_t kv = 0; kv < kv_heads_ && source < 0; ++kv) {
        if (is(all[static_cast<std::size_t>(kv)])) source = kv;
      }
      if (source < 0) return;
      if (words.size() < 60)
        words += fmt::format("{}q head {} reads kv head {} in place of {}", words.empty() ? "" : ", ",
                             h, source, right_.kv_heads[static_cast<std::size_t>(h)]);
      for (std::int64_t m = 0; m < mixed.y.rows(); ++m) {
        for (std::int64_t c = h * d_; c < (h + 1) * d_; ++c) {
          mixed.y(m, c) = all[static_cast<std::size_t>(source)].y(m, c);
          mixed.budget(m, c) = all[static_cast<std::size_t>(source)].budget(m, c);
        }
      }
    }
    if (!words.empty())
      found_.test("kv_head_of_neighbour", mixed, fmt::format("on rank {}, {}", rank_.rank(), words));
  }

  void masks() {
    const int r = rank_.rank();
    Variant variant = right_;
    variant.causal = false;
    test("wrong_mask", variant, fmt::format("rank {} sees all keys of the step, also later ones", r));
    for (const std::int64_t ahead : {1, -1, 2, -2}) {
      variant = right_;
      variant.ahead = ahead;
      if (right_.window > 0) variant.window = right_.window + ahead;  // only the near end moves
      test("wrong_mask", variant,
           fmt::format("rank {}'s causal mask is {} by {}", r,
                       ahead > 0 ? "too wide" : "too narrow", std::abs(ahead)));
      variant.window = right_.window;
      test("wrong_mask", variant,
           fmt::format("rank {}'s queries are {} by {} in the mask", r,
                       ahead > 0 ? "ahead" : "behind", std::abs(ahead)));
    }
    std::set<std::int64_t> windows;
    for (const auto& window : op_.program().config.windows) windows.insert(window.value_or(0));
    std::int64_t longest = 1;
    for (const std::size_t s : op_.work().steps) {
      for (const StepSequence& part : op_.run().steps[s].step.sequences)
        longest = std::max(longest, part.first + part.count);
    }
    for (std::int64_t w = 0; w < std::min<std::int64_t>(longest, 64); ++w) windows.insert(w);
    windows.erase(right_.window);
    const auto distance = [this](std::int64_t w) { return std::abs(w - right_.window); };
    std::vector<std::int64_t> ordered(windows.begin(), windows.end());
    std::stable_sort(ordered.begin(), ordered.end(),
                     [&](std::int64_t a, std::int64_t b) { return distance(a) < distance(b); });
    for (const std::int64_t window : ordered) {
      if (found_.has("wrong_mask")) return;
      variant = right_;
      variant.window = window;
      test("wrong_mask", variant,
           fmt::format("rank {} sees {} keys back, the model {}", r,
                       window == 0 ? "all" : std::to_string(window),
                       right_.window == 0 ? "all" : std::to_string(right_.window)));
    }
    variant = right_;
    variant.sees = [](std::int64_t key, std::int64_t first, std::int64_t) { return key >= first; };
    test("wrong_mask", variant, fmt::format("rank {} sees only this step's keys, not the cache", r));
    variant.sees = [](std::int64_t key, std::int64_t first, std::int64_t) { return key < first; };
    test("wrong_mask", variant, fmt::format("rank {} sees only the cache, not this step's keys", r));
    variant.sees = [](std::int64_t key, std::int64_t, std::int64_t) { return key > 0; };
    test("wrong_mask", variant, fmt::format("rank {} doesn't see the first key", r));
  }

  void scales() {
    const double d = static_cast<double>(d_);
    const Config& config = op_.program().config;
    std::vector<double> all{1.0,
                            1.0 / d,
                            std::sqrt(d),
                            1.0 / std::sqrt(static_cast<double>(config.hidden_size)),
                            1.0 / std::sqrt(static_cast<double>(config.hidden_size) /
                                            static_cast<double>(config.num_heads)),
                            right_.scale * std::log2(std::exp(1.0)),
                            right_.scale / std::log2(std::exp(1.0))};
    std::vector<int> sizes{2, op_.ranks()};
    for (const Mesh::Axis& axis : op_.run().mesh.axes) sizes.push_back(axis.size);
    for (const int size : sizes) {
      for (const double f : {static_cast<double>(size), std::sqrt(static_cast<double>(size))})
        all.insert(all.end(), {right_.scale * f, right_.scale / f});
    }
    for (const double scale : all) {
      if (scale == right_.scale || found_.has("wrong_scale")) continue;
      Variant variant = right_;
      variant.scale = scale;
      test("wrong_scale", variant,
           fmt::format("rank {} scales its scores by {:.6g}, the model by {:.6g}", rank_.rank(),
                       scale, right_.scale));
    }
    if (!found_.has("wrong_scale")) fitted_scale();
  }

  /// The scale that leaves the least error, by golden section on its logarithm: any other one.
  void fitted_scale() {
    if (rank_.wrong().elements < 2) return;
    const auto error = [this](double log_factor) {
      Variant variant = right_;
      variant.scale = right_.scale * std::exp(log_factor);
      const LocalValue y = value(variant);
      double sum = 0.0;
      for (std::int64_t m = 0; m < y.y.rows(); ++m) {
        for (std::int64_t c = 0; c < y.y.cols(); ++c) {
          if (rank_.owned(m, c))
            sum += std::pow((rank_.got()(m, c) - y.y(m, c)) / std::max(rank_.budget(m, c), 1e-300),
                            2.0);
        }
      }
      return sum;
    };
    double low = -std::log(64.0), high = std::log(64.0);
    const double golden = (std::sqrt(5.0) - 1.0) / 2.0;
    double a = high - golden * (high - low), b = low + golden * (high - low);
    double at_a = error(a), at_b = error(b);
    for (int i = 0; i < 80; ++i) {
      if (at_a < at_b) {
        high = b;
        b = a;
        at_b = at_a;
        a = high - golden * (high - low);
        at_a = error(a);
      } else {
        low = a;
        a = b;
        at_a = at_b;
        b = low + golden * (high - low);
        at_b = error(b);
      }
    }
    Variant variant = right_;
    variant.scale = right_.scale * std::exp((low + high) / 2.0);
    test("wrong_scale", variant,
         fmt::format("rank {} scales its scores by {:.6g}, the model by {:.6g}", rank_.rank(),
                     variant.scale, right_.scale));
  }

  /// softmax over some ranks' keys only.
  void shards() {
    std::set<int> sizes{op_.ranks()};
    for (const Mesh::Axis& axis : op_.run().mesh.axes) sizes.insert(axis.size);
    sizes.erase(1);
    for (const int size : sizes) {
      for (int i = 0; i < size; ++i) {
        const int shard = (rank_.rank() + i) % size;
        Variant variant = right_;
        variant.sees = [=](std::int64_t key, std::int64_t, std::int64_t end) {
          const Ranges part = Partition::balanced(end, size).of(shard);
          return !part.empty() && part[0].begin <= key && key < part[0].end;
        };
        test("statistic_of_shard", variant,
             fmt::format("rank {} takes its softmax over part {} of {} of the keys", rank_.rank(),
                         shard, size));
      }
    }
  }

  const RankCase& rank_;
  const FailedOp& op_;
  Explanations& found_;
  std::int64_t d_ = 0, heads_ = 0, kv_heads_ = 0, cache_window_ = 0;
  Variant right_;
};

}  // namespace

void explain_attention(const RankCase& rank, Explanations& found) {
  if (rank.op().op() == "attention") AttentionHypotheses(rank, found).run();
}

}  // namespace shardcheck
