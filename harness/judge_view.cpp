// SPDX-License-Identifier: Apache-2.0
#include "harness/judge_view.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <numeric>

#include "model/float_bits.hpp"

namespace shardcheck {

void widen(const HostTensor& tensor, std::int64_t first, std::span<double> out) {
  const auto from = static_cast<std::size_t>(first);
  const std::size_t n = out.size();
  switch (tensor.dtype()) {
    case DType::f64: {
      const double* in = tensor.as<double>().data() + from;
      std::copy_n(in, n, out.begin());
      return;
    }
    case DType::f32: {
      const float* in = tensor.as<float>().data() + from;
      for (std::size_t i = 0; i < n; ++i) out[i] = static_cast<double>(in[i]);
      return;
    }
    case DType::bf16: {
      const std::uint16_t* in = tensor.as<std::uint16_t>().data() + from;
      for (std::size_t i = 0; i < n; ++i) out[i] = static_cast<double>(bf16_to_f32(in[i]));
      return;
    }
    case DType::f16: {
      const std::uint16_t* in = tensor.as<std::uint16_t>().data() + from;
      for (std::size_t i = 0; i < n; ++i) out[i] = static_cast<double>(f16_to_f32(in[i]));
      return;
    }
    default:
      for (std::size_t i = 0; i < n; ++i) out[i] = tensor.at(first + static_cast<std::int64_t>(i));
  }
}

TapReader::TapReader(const TapRun& run, std::vector<std::size_t> steps, const Value& value)
    : run_(&run),
      steps_(std::move(steps)),
      name_(value.name),
      dtype_(dtype_of(value.dtype, run.storage, run.wire)),
      kind_(value.rows),
      window_(value.window) {
  for (const std::size_t s : steps_) {
    const TapValue* tap = run.steps[s].find(name_);
    const auto has_part = [](const HostTensor& part) { return !part.shape().empty(); };
    if (tap == nullptr || std::none_of(tap->ranks.begin(), tap->ranks.end(), has_part)) {
      present_ = false;
      if (tap == nullptr) return;
    }
    taps_.push_back(tap);
    const Step& step = run.steps[s].step;
    rows_.push_back(value.rows == ValueRows::cache ? cache_rows(step, value.window) : step.tokens());
  }
  if (taps_.empty()) present_ = false;
}

std::int64_t TapReader::rows() const {
  return std::accumulate(rows_.begin(), rows_.end(), std::int64_t{0});
}

Ranges TapReader::row_ranges(std::size_t s, int rank) const {
  const Layout& layout = tap(s).layout;
  if (kind_ == ValueRows::tokens) return layout.row_ranges(run_->mesh, rank, step(s));
  std::vector<const Step*> so_far;
  for (std::size_t i = 0; i <= steps_[s]; ++i) so_far.push_back(&run_->steps[i].step);
  return layout.cache_ranges(run_->mesh, rank, so_far, window_);
}

std::string TapReader::defect(int rank) const {
  if (taps_.size() != steps_.size()) return "the run has no such tap";
  for (std::size_t s = 0; s < taps_.size(); ++s) {
    const auto r = static_cast<std::size_t>(rank);
    if (r >= tap(s).ranks.size() || tap(s).ranks[r].shape().empty()) {
      return fmt::format("rank {} has none in {} step {}", rank, shardcheck::name(step(s).phase),
                         step(s).index);
    }
    const HostTensor& part = tap(s).ranks[r];
    const std::vector<std::int64_t> needed{total(row_ranges(s, rank)),
                                           total(tap(s).layout.feature_ranges(rank))};
    if (part.shape() != needed) {
      return fmt::format("has shape {} on rank {}, needs {}", to_string(part.shape()), rank,
                         to_string(needed));
    }
    if (part.dtype() != dtype_) {
      return fmt::format("is {} on rank {}, needs {}", shardcheck::name(part.dtype()), rank,
                         shardcheck::name(dtype_));
    }
  }
  return {};
}

std::vector<int> TapReader::seen_by(int rank) const {
  std::vector<int> cut;
  for (std::size_t axis = 0; axis < layout().placements.size(); ++axis) {
    if (layout().placements[axis].kind == Placement::Kind::S) cut.push_back(static_cast<int>(axis));
  }
  std::vector<int> peers{rank};
  for (const int peer : run_->mesh.group(rank, cut)) {
    if (peer != rank) peers.push_back(peer);
  }
  return peers;
}

std::vector<const void*> TapReader::key(const std::vector<int>& peers) const {
  // Without overlap the order of the peers changes nothing: sorted, all ranks of a group get one key.
  std::vector<int> ordered = peers;
  if (!layout().may_overlap) std::sort(ordered.begin(), ordered.end());
  std::vector<const void*> parts;
  for (std::size_t s = 0; s < taps_.size(); ++s) {
    for (const int peer : ordered) {
      const HostTensor& part = tap(s).ranks[static_cast<std::size_t>(peer)];
      parts.push_back(part.elements() == 0 ? nullptr : part.data());
    }
  }
  return parts;
}

F64Matrix TapReader::assemble(const std::vector<int>& peers) const {
  F64Matrix whole(rows(), layout().features);
  if (peers.size() > 1 || layout().feature_ranges(peers.front()) != Ranges{{0, layout().features}}) {
    std::fill_n(whole.data(), whole.rows() * whole.cols(), std::numeric_limits<double>::quiet_NaN());
  }
  std::int64_t offset = 0;
  for (std::size_t s = 0; s < taps_.size(); ++s) {
    for (auto peer = peers.rbegin(); peer != peers.rend(); ++peer) {
      const HostTensor& part = tap(s).ranks[static_cast<std::size_t>(*peer)];
      const Ranges features = tap(s).layout.feature_ranges(*peer);
      std::int64_t at = 0;  // element of the part
      for (const Range& tokens : row_ranges(s, *peer)) {
        for (std::int64_t row = tokens.begin; row < tokens.end; ++row) {
          for (const Range& range : features) {
            const auto n = static_cast<std::size_t>(range.size());
            widen(part, at, whole.row(offset + row).subspan(static_cast<std::size_t>(range.begin), n));
            at += range.size();
          }
        }
      }
    }
    offset += rows(s);
  }
  return whole;
}

}  // namespace shardcheck
