// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <optional>
#include <vector>

#include "sharded/comm/dense_group.hpp"
#include "sharded/comm/movement.hpp"

namespace shardcheck {
namespace {

/// The elements [begin, begin + rows cols) of a contiguous tensor as a matrix.
Tensor matrix(const Tensor& flat, std::int64_t begin, std::int64_t rows, std::int64_t cols) {
  Tensor view = flat;
  view.offset += begin;
  view.rows = rows;
  view.cols = view.row_stride = cols;
  view.col_stride = 1;
  return view;
}

/// One collective of one member.
class DenseMovement {
 public:
  DenseMovement(DenseGroup& group, Device& device, Stream& stream, int size, int member, const Post& post)
      : group_(group),
        device_(device),
        stream_(stream),
        size_(size),
        member_(member),
        post_(post),
        call_(post.call) {}

  void run() {
    if (call_.rows * call_.cols == 0) return;
    switch (call_.kind) {
      case CollectiveKind::all_reduce:
        return all_reduce();
      case CollectiveKind::reduce_scatter:
        return reduce_scatter();
      case CollectiveKind::all_gather:
        return all_gather();
      case CollectiveKind::all_to_all:
        return all_to_all();
      case CollectiveKind::broadcast:
        return broadcast();
      case CollectiveKind::send:
      case CollectiveKind::recv:
        return message();
    }
  }

 private:
  void all_reduce() {
    if (group_.reduces(call_.reduction, post_.in)) {
      group_.all_reduce(stream_, post_.in, call_.reduction, post_.out);
    } else {
      fill_from_gathered(post_.in, Dim::tokens, nullptr);
    }
  }

  void reduce_scatter() {
    if (!group_.reduce_scatters(call_.reduction, post_.in))
      return fill_from_gathered(post_.in, Dim::tokens, nullptr);
    const std::int64_t slot = largest(*call_.part, call_.dim);
    if (slot == 0) return;
    const Tensor slots = new_slots(slot);
    for (int to = 0; to < size_; ++to) {
      Tensor target = slot_of(slots, to, *call_.part, call_.dim);
      std::int64_t at = 0;
      for (const Range& range : call_.part->of(to)) {
        device_.copy(stream_, range_of(post_.in, call_.dim, range),
                     range_of(target, call_.dim, {at, at + range.size()}));
        at += range.size();
      }
    }
    const Tensor own = device_.allocate(stream_, call_.dtype, 1, slot);
    group_.reduce_scatter(stream_, slots, own);
    device_.copy(stream_, matrix(own, 0, post_.out.rows, post_.out.cols), post_.out);
  }

  void all_gather() { fill_from_gathered(post_.in, call_.dim, call_.part); }

  /// Gathers every member's in, of parts of `dim` or whole, and does what thread ranks would do with them.
  void fill_from_gathered(const Tensor& in, Dim dim, const Partition* part) {
    const std::int64_t slot = part == nullptr ? in.elements() : largest(*part, dim);
    const Tensor slots = new_slots(slot);
    if (slot > 0) group_.all_gather(stream_, packed(in, slot), slots);
    std::vector<Post> posts;
    for (int from = 0; from < size_; ++from) {
      const Tensor theirs = part == nullptr ? matrix(slots, from * slot, in.rows, in.cols)
                                            : slot_of(slots, from, *part, dim);
      posts.push_back({call_, theirs, post_.out});
    }
    Movement(device_, stream_, posts).fill(member_);
  }

  /// What lies in both this member's part of one dimension and the peer's of the other travels as one message.
  void all_to_all() {
    std::vector<DenseGroup::Message> sends, receives;
    std::vector<Tensor> received;
    for (int peer = 0; peer < size_; ++peer) {
      const Tensor sent = of_split(peer);
      const std::int64_t theirs = call_.concat_part->size(peer), mine = call_.part->size(member_);
      received.push_back(call_.concat == Dim::tokens
                             ? device_.allocate(stream_, call_.dtype, theirs, mine)
                             : device_.allocate(stream_, call_.dtype, mine, theirs));
      if (peer == member_) {
        device_.copy(stream_, sent, received.back());
        continue;
      }
      if (sent.elements() > 0) sends.push_back({sent, peer});
      if (received.back().elements() > 0) receives.push_back({received.back(), peer});
    }
    group_.exchange(stream_, sends, receives);
    for (int from = size_ - 1; from >= 0; --from) {  // where parts overlap the lowest owner's numbers stay
      std::int64_t at = 0;
      for (const Range& range : call_.concat_part->of(from)) {
        device_.copy(
            stream_,
            range_of(received[static_cast<std::size_t>(from)], call_.concat, {at, at + range.size()}),
            range_of(post_.out, call_.concat, range));
        at += range.size();
      }
    }
  }

  /// A copy of what lies in a member's part of the split dimension.
  Tensor of_split(int member) {
    const std::int64_t extent = call_.part->size(member);
    const Tensor packed = call_.dim == Dim::tokens
                              ? device_.allocate(stream_, call_.dtype, extent, post_.in.cols)
                              : device_.allocate(stream_, call_.dtype, post_.in.rows, extent);
    std::int64_t at = 0;
    for (const Range& range : call_.part->of(member)) {
      device_.copy(stream_, range_of(post_.in, call_.dim, range),
                   range_of(packed, call_.dim, {at, at + range.size()}));
      at += range.size();
    }
    return packed;
  }

  void broadcast() {
    const Tensor in = member_ == call_.peer_member ? packed(post_.in, post_.in.elements()) : Tensor{};
    if (post_.out.contiguous()) return group_.broadcast(stream_, in, call_.peer_member, post_.out);
    const Tensor dense = device_.allocate(stream_, call_.dtype, call_.rows, call_.cols);
    group_.broadcast(stream_, in, call_.peer_member, dense);
    device_.copy(stream_, dense, post_.out);
  }

  void message() {
    if (call_.kind == CollectiveKind::send) {
      const DenseGroup::Message sent{packed(post_.in, post_.in.elements()), 1 - member_};
      return group_.exchange(stream_, {&sent, 1}, {});
    }
    const bool direct = post_.out.contiguous();
    const DenseGroup::Message received{
        direct ? post_.out : device_.allocate(stream_, call_.dtype, call_.rows, call_.cols),
        1 - member_};
    group_.exchange(stream_, {}, {&received, 1});
    if (!direct) device_.copy(stream_, received.tensor, post_.out);
  }

  // ---- slots: as many elements for each member, of which it may use fewer ----
  std::int64_t largest(const Partition& part, Dim dim) const {
    std::int64_t extent = 0;
    for (int member = 0; member < size_; ++member) extent = std::max(extent, part.size(member));
    return extent * (dim == Dim::tokens ? call_.cols : call_.rows);
  }
  Tensor new_slots(std::int64_t slot) {
    const Tensor slots = device_.allocate(stream_, call_.dtype, size_, slot);
    device_.poison(stream_, slots);
    return slots;
  }
  Tensor slot_of(const Tensor& slots, int member, const Partition& part, Dim dim) const {
    const std::int64_t extent = part.size(member), begin = member * slots.cols;
    return dim == Dim::tokens ? matrix(slots, begin, extent, call_.cols)
                              : matrix(slots, begin, call_.rows, extent);
  }
  /// The tensor's elements at the start of a contiguous one of `elements`; itself where it is that already.
  Tensor packed(const Tensor& tensor, std::int64_t elements) {
    if (tensor.contiguous() && tensor.elements() == elements) return matrix(tensor, 0, 1, elements);
    const Tensor dense = device_.allocate(stream_, tensor.dtype, 1, elements);
    device_.poison(stream_, dense);
    device_.copy(stream_, tensor, matrix(dense, 0, tensor.rows, tensor.cols));
    return dense;
  }

  DenseGroup& group_;
  Device& device_;
  Stream& stream_;
  const int size_, member_;
  const Post& post_;
  const Call& call_;
};

}  // namespace

void move_densely(DenseGroup& group, Device& device, Stream& stream, int size, int member,
                  const Post& post) {
  DenseMovement(group, device, stream, size, member, post).run();
}

}  // namespace shardcheck
