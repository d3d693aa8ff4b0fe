// SPDX-License-Identifier: Apache-2.0
#include "sharded/comm/movement.hpp"

#include <algorithm>

namespace shardcheck {
namespace {

/// A block of a sum is passed on to the peers while it is in the cache. (128 KiB to 512 KiB came out alike, 16 KiB a
/// quarter slower.)
constexpr std::int64_t kBlockBytes = 128 * 1024;

/// Makes `view` the elements [begin, end) of the contiguous `whole`, as one row.
void slide(Tensor& view, const Tensor& whole, std::int64_t begin, std::int64_t end) {
  view.offset = whole.offset + begin;
  view.rows = 1;
  view.cols = end - begin;
  view.row_stride = view.cols;
  view.col_stride = 1;
}

}  // namespace

Movement::Movement(Device& device, Stream& stream, std::span<const Post> posts)
    : device_(device),
      stream_(stream),
      posts_(posts),
      call_(posts[0].call),
      shares_(static_cast<int>(posts.size())) {
  for (const Post& post : posts) {
    in_.push_back(post.in);
    out_.push_back(post.out);
    in_.back().device = out_.back().device = &device;
  }
  if (call_.kind == CollectiveKind::all_reduce) {
    shares_ = static_cast<int>((call_.payload_bytes() + kBlockBytes - 1) / kBlockBytes);
  }
  if (call_.kind == CollectiveKind::all_reduce || call_.kind == CollectiveKind::reduce_scatter) {
    in_view_ = in_;
    out_view_ = out_;
  }
}

void Movement::carry_out(int share) {
  const auto own = static_cast<std::size_t>(share);
  if (call_.kind == CollectiveKind::all_reduce) return all_reduce(share);
  switch (posts_[own].call.kind) {
    case CollectiveKind::all_reduce:
      return;
    case CollectiveKind::reduce_scatter:
      return reduce_scatter(share);
    case CollectiveKind::all_gather:
      return all_gather(share);
    case CollectiveKind::all_to_all:
      return all_to_all(share);
    case CollectiveKind::broadcast:
      return device_.copy(stream_, in_[static_cast<std::size_t>(call_.peer_member)], out_[own]);
    case CollectiveKind::send:
      return;
    case CollectiveKind::recv:
      return device_.copy(stream_, in_[1 - own], out_[own]);
  }
}

void Movement::fill(int member) {
  const std::int64_t elements = call_.rows * call_.cols;
  if (call_.kind == CollectiveKind::all_reduce) {
    if (elements > 0) reduce(0, elements, member, 0);
  } else if (call_.kind == CollectiveKind::reduce_scatter && call_.dim != Dim::tokens && elements > 0) {
    reduce_columns(member);
  } else {
    carry_out(member);
  }
}

/// The member's columns of the reduction, by way of all columns: one launch in place of one per row and range.
void Movement::reduce_columns(int member) {
  const Tensor& out = out_[static_cast<std::size_t>(member)];
  const Tensor whole = device_.allocate(stream_, call_.dtype, call_.rows, call_.cols);
  device_.reduce_n(stream_, in_, call_.reduction, 0, whole.elements(), whole);
  std::int64_t filled = 0;
  for (const Range& range : call_.part->of(member)) {
    device_.copy(stream_, whole.col_range(range.begin, range.end),
                 out.col_range(filled, filled + range.size()));
    filled += range.size();
  }
}

/// Elements [begin, end) of the flat whole, reduced over the members, go to the member's out from `out_begin` on.
void Movement::reduce(std::int64_t begin, std::int64_t end, int member, std::int64_t out_begin) {
  const auto own = static_cast<std::size_t>(member);
  for (std::size_t i = 0; i < in_.size(); ++i) slide(in_view_[i], in_[i], begin, end);
  slide(out_view_[own], out_[own], out_begin, out_begin + (end - begin));
  device_.reduce_n(stream_, in_view_, call_.reduction, begin, call_.rows * call_.cols, out_view_[own]);
}

/// Reduces one block of the flat tensor and writes it to everybody's out.
void Movement::all_reduce(int block) {
  const std::int64_t width = kBlockBytes / static_cast<std::int64_t>(element_size(call_.dtype));
  const std::int64_t begin = block * width;
  const std::int64_t end = std::min(call_.rows * call_.cols, begin + width);
  const auto first = static_cast<std::size_t>(block) % out_.size();
  reduce(begin, end, static_cast<int>(first), begin);
  for (std::size_t i = 0; i < out_.size(); ++i) {
    if (i == first) continue;
    slide(out_view_[i], out_[i], begin, end);
    device_.copy(stream_, out_view_[first], out_view_[i]);
  }
}

/// Reduces the member's part. Rows are one flat stretch per range, columns one per row and range.
void Movement::reduce_scatter(int member) {
  const Ranges& ranges = call_.part->of(member);
  const bool by_rows = call_.dim == Dim::tokens;
  const std::int64_t stretches = by_rows ? 1 : call_.rows;
  const std::int64_t unit = by_rows ? call_.cols
                                    : 1;  // elements of the flat whole per index of the cut dimension
  std::int64_t filled = 0;
  for (std::int64_t i = 0; i < stretches; ++i) {
    for (const Range& range : ranges) {
      const std::int64_t begin = i * call_.cols + range.begin * unit;
      const std::int64_t count = range.size() * unit;
      if (count > 0) reduce(begin, begin + count, member, filled);
      filled += count;
    }
  }
}

/// Copies every rank's part to its place in the member's out. The highest rank comes first, so that where parts
/// overlap the lowest owner's numbers stay.
void Movement::all_gather(int member) {
  const Tensor& out = out_[static_cast<std::size_t>(member)];
  for (int from = static_cast<int>(posts_.size()) - 1; from >= 0; --from) {
    const Tensor& in = in_[static_cast<std::size_t>(from)];
    std::int64_t local = 0;
    for (const Range& range : call_.part->of(from)) {
      device_.copy(stream_, range_of(in, call_.dim, {local, local + range.size()}),
                   range_of(out, call_.dim, range));
      local += range.size();
    }
  }
}

/// Copies, of every rank's part of the concatenated dimension, what lies in the member's part of the split one.
void Movement::all_to_all(int member) {
  const Tensor& out = out_[static_cast<std::size_t>(member)];
  for (int from = static_cast<int>(posts_.size()) - 1; from >= 0; --from) {
    const Tensor& in = in_[static_cast<std::size_t>(from)];
    std::int64_t in_at = 0;
    for (const Range& outer : call_.concat_part->of(from)) {
      const Tensor source = range_of(in, call_.concat, {in_at, in_at + outer.size()});
      const Tensor target = range_of(out, call_.concat, outer);
      std::int64_t out_at = 0;
      for (const Range& inner : call_.part->of(member)) {
        device_.copy(stream_, range_of(source, call_.dim, inner),
                     range_of(target, call_.dim, {out_at, out_at + inner.size()}));
        out_at += inner.size();
      }
      in_at += outer.size();
    }
  }
}

}  // namespace shardcheck
