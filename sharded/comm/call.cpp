// SPDX-License-Identifier: Apache-2.0
#include "sharded/comm/call.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <string_view>

namespace shardcheck {
namespace {

std::string_view word(Dim dim) { return dim == Dim::tokens ? "tokens" : "features"; }
std::int64_t extent(const Tensor& tensor, Dim dim) {
  return dim == Dim::tokens ? tensor.rows : tensor.cols;
}
Dim other(Dim dim) { return dim == Dim::tokens ? Dim::features : Dim::tokens; }
std::string shape(const Tensor& tensor) {
  return fmt::format("[{}, {}]", tensor.rows, tensor.cols);
}

/// Collects the first broken rule of a call.
class Operands {
 public:
  Operands(Call& call, const GroupView& group) : call_(call), group_(group) {}

  template <typename... Arguments>
  bool require(bool holds, fmt::format_string<Arguments...> rule, Arguments&&... arguments) {
    if (!holds && call_.defect.empty())
      call_.defect = fmt::format(rule, std::forward<Arguments>(arguments)...);
    return holds;
  }

  bool exist(const Tensor& in, const Tensor& out) {
    return require(static_cast<bool>(in), "in is no tensor") &&
           require(static_cast<bool>(out), "out is no tensor") &&
           require(in.dtype == out.dtype,
                   "in is {}, out is {}: both must have the dtype on the wire", name(in.dtype),
                   name(out.dtype));
  }

  /// A reduction addresses its operands by flat index.
  bool flat(const Tensor& in, const Tensor& out) {
    return require(in.contiguous(), "in {} is strided; a reduction needs contiguous tensors",
                   shape(in)) &&
           require(out.contiguous(), "out {} is strided; a reduction needs contiguous tensors",
                   shape(out));
  }

  /// Alone in its group a rank may pass one tensor as both; otherwise poisoning out would destroy in.
  void distinct(const Tensor& in, const Tensor& out) {
    if (group_.size() == 1 || !in.storage || in.storage != out.storage) return;
    if (in.elements() == 0 || out.elements() == 0 || !in.contiguous() || !out.contiguous()) return;
    require(in.offset + in.elements() <= out.offset || out.offset + out.elements() <= in.offset,
            "out overlaps in; give it a buffer of its own");
  }

  bool partition(const Partition& part, Dim dim) {
    if (!require(part.ranks() == group_.size(),
                 "the partition of {} has {} parts, the group {} has {} ranks", word(dim),
                 part.ranks(), group_.name, group_.size())) {
      return false;
    }
    for (int member = 0; member < part.ranks(); ++member) {
      for (const Range& range : part.of(member)) {
        if (!require(0 <= range.begin && range.begin <= range.end && range.end <= part.extent(),
                     "the partition of {} gives rank {} the range [{},{}) of {} elements",
                     word(dim), group_.world_rank(member), range.begin, range.end, part.extent())) {
          return false;
        }
      }
    }
    return true;
  }

  void is_part(std::string_view which, const Tensor& tensor, Dim dim, const Partition& part) {
    const std::int64_t own = part.size(group_.member);
    require(extent(tensor, dim) == own,
            "{} is {}, but this rank's part of {} is {} of {} elements: {}", which, shape(tensor),
            word(dim), own, part.extent(), to_string(part.of(group_.member)));
  }

  void is_whole(std::string_view which, const Tensor& tensor, Dim dim, const Partition& part) {
    require(extent(tensor, dim) == part.extent(), "{} is {}, but the whole of {} has {} elements",
            which, shape(tensor), word(dim), part.extent());
  }

  void same_extent(const Tensor& in, const Tensor& out, Dim dim) {
    require(extent(in, dim) == extent(out, dim), "in is {}, out is {}: they must have the same {}",
            shape(in), shape(out), word(dim));
  }

  /// The member that the caller named, by its index in the group.
  void peer(int index, std::string_view role, bool may_be_self) {
    if (require(0 <= index && index < group_.size(), "{} {} is not in the group {} of {} ranks",
                role, index, group_.name, group_.size()) &&
        require(may_be_self || index != group_.member, "{} {} is this rank itself", role, index)) {
      call_.peer_member = index;
      call_.peer = group_.world_rank(index);
    }
  }

 private:
  Call& call_;
  const GroupView& group_;
};

Call new_call(CollectiveKind kind, const Tensor& like, const CallSite& site) {
  Call call;
  call.kind = kind;
  call.rows = like.rows;
  call.cols = like.cols;
  call.dtype = like.dtype;
  call.site = site;
  return call;
}

void set_extent(Call& call, Dim dim, std::int64_t size) {
  (dim == Dim::tokens ? call.rows : call.cols) = size;
}

}  // namespace

GroupView group_view(const Mesh& mesh, int rank, const std::vector<int>& axes) {
  GroupView group;
  std::vector<std::string_view> names;
  for (const int axis : axes) names.push_back(mesh.axes.at(static_cast<std::size_t>(axis)).name);
  group.name = fmt::format("{}", fmt::join(names, ","));
  group.members = mesh.group(rank, axes);
  while (group.world_rank(group.member) != rank) ++group.member;
  return group;
}

Call all_reduce_call(const GroupView& group, const Tensor& in, const ReduceSpec& spec,
                     const Tensor& out, const CallSite& site) {
  Call call = new_call(CollectiveKind::all_reduce, in, site);
  call.reduction = spec;
  call.own_bytes = in.bytes();
  Operands check(call, group);
  if (!check.exist(in, out)) return call;
  check.require(in.rows == out.rows && in.cols == out.cols,
                "in is {}, out is {}: they must have one shape", shape(in), shape(out));
  check.flat(in, out);
  check.distinct(in, out);
  return call;
}

Call all_gather_call(const GroupView& group, const Tensor& in, Dim dim, const Partition& part,
                     const Tensor& out, const CallSite& site) {
  Call call = new_call(CollectiveKind::all_gather, in, site);
  set_extent(call, dim, part.extent());
  call.dim = dim;
  call.part = &part;
  call.own_bytes = in.bytes();
  Operands check(call, group);
  if (!check.exist(in, out) || !check.partition(part, dim)) return call;
  check.is_part("in", in, dim, part);
  check.is_whole("out", out, dim, part);
  check.same_extent(in, out, other(dim));
  check.distinct(in, out);
  return call;
}

Call reduce_scatter_call(const GroupView& group, const Tensor& in, Dim dim, const Partition& part,
                         const ReduceSpec& spec, const Tensor& out, const CallSite& site) {
  Call call = new_call(CollectiveKind::reduce_scatter, in, site);
  call.dim = dim;
  call.part = &part;
  call.reduction = spec;
  call.own_bytes = in.bytes();
  Operands check(call, group);
  if (!check.exist(in, out) || !check.partition(part, dim)) return call;
  check.is_whole("in", in, dim, part);
  check.is_part("out", out, dim, part);
  check.same_extent(in, out, other(dim));
  check.flat(in, out);
  check.distinct(in, out);
  return call;
}

Call all_to_all_call(const GroupView& group, const Tensor& in, Dim split,
                     const Partition& split_part, Dim concat, const Partition& concat_part,
                     const Tensor& out, const CallSite& site) {
  Call call = new_call(CollectiveKind::all_to_all, in, site);
  set_extent(call, concat, concat_part.extent());
  call.dim = split;
  call.part = &split_part;
  call.concat = concat;
  call.concat_part = &concat_part;
  call.own_bytes = in.bytes();
  Operands check(call, group);
  if (!check.exist(in, out) || !check.partition(split_part, split) ||
      !check.partition(concat_part, concat)) {
    return call;
  }
  if (!check.require(split != concat, "it splits and concatenates the same dimension, {}", word(split)))
    return call;
  check.is_part("in", in, concat, concat_part);
  check.is_whole("in", in, split, split_part);
  check.is_part("out", out, split, split_part);
  check.is_whole("out", out, concat, concat_part);
  check.distinct(in, out);
  return call;
}

Call broadcast_call(const GroupView& group, const Tensor& in, int root, const Tensor& out,
                    const CallSite& site) {
  Call call = new_call(CollectiveKind::broadcast, out, site);  // only the root's in is read
  call.own_bytes = out.bytes();
  Operands check(call, group);
  check.peer(root, "root", true);
  if (root != group.member) {
    check.require(static_cast<bool>(out), "out is no tensor");
  } else if (check.exist(in, out)) {
    check.require(in.rows == out.rows && in.cols == out.cols,
                  "in is {}, out is {}: they must have one shape", shape(in), shape(out));
    check.distinct(in, out);
  }
  return call;
}

Call send_call(const GroupView& group, const Tensor& in, int to, const CallSite& site) {
  Call call = new_call(CollectiveKind::send, in, site);
  call.own_bytes = in.bytes();
  Operands check(call, group);
  check.peer(to, "receiver", false);
  check.require(static_cast<bool>(in), "in is no tensor");
  return call;
}

Call recv_call(const GroupView& group, const Tensor& out, int from, const CallSite& site) {
  Call call = new_call(CollectiveKind::recv, out, site);
  Operands check(call, group);
  check.peer(from, "sender", false);
  check.require(static_cast<bool>(out), "out is no tensor");
  return call;
}

std::string describe(const Call& call) {
  std::string peer;
  if (call.kind == CollectiveKind::send) peer = fmt::format(" to rank {}", call.peer);
  if (call.kind == CollectiveKind::recv) peer = fmt::format(" from rank {}", call.peer);
  return fmt::format("{}{} [{}, {}] {} at {} ({} step {})", name(call.kind), peer, call.rows, call.cols,
                     name(call.dtype), call.site.site.empty() ? "an unnamed site" : call.site.site,
                     name(call.site.phase), call.site.step);
}

LedgerRecord ledger_record(const Call& call, const GroupView& group) {
  LedgerRecord record;
  record.kind = LedgerRecord::Kind::collective;
  record.site = call.site.site;
  record.what = name(call.kind);
  record.group = group.name;
  record.group_size = group.size();
  record.dtype = call.dtype;
  record.reduction = call.reduction;
  record.payload_bytes = call.payload_bytes();
  record.own_bytes = call.own_bytes;
  record.phase = call.site.phase;
  record.step = call.site.step;
  return record;
}

bool same_tensor(const Tensor& a, const Tensor& b) {
  return a.storage == b.storage && a.offset == b.offset && a.rows == b.rows && a.cols == b.cols &&
         a.row_stride == b.row_stride && a.col_stride == b.col_stride;
}

}  // namespace shardcheck
