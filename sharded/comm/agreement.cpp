// SPDX-License-Identifier: Apache-2.0
#include "sharded/comm/agreement.hpp"

#include <fmt/format.h>

#include <string_view>

namespace shardcheck {
namespace {

std::string_view word(Dim dim) { return dim == Dim::tokens ? "tokens" : "features"; }

std::string partition_text(const Partition* part) {
  if (part == nullptr) return "none";
  std::string text = fmt::format("of {}:", part->extent());
  for (int member = 0; member < part->ranks(); ++member) text += ' ' + to_string(part->of(member));
  return text;
}

bool same_partition(const Partition* a, const Partition* b) {
  return a == b || (a != nullptr && b != nullptr && *a == *b);
}

/// A property that all ranks must share: how to compare it, and how to print it.
struct Field {
  std::string_view what;
  bool (*same)(const Call&, const Call&);
  std::string (*value)(const Call&);  // empty: the call's description shows it already
};

std::string shown_already(const Call&) { return {}; }

constexpr Field kShape{
    "the shape of the whole tensor",
    [](const Call& a, const Call& b) { return a.rows == b.rows && a.cols == b.cols; }, shown_already};
constexpr Field kDType{"the dtype on the wire",
                       [](const Call& a, const Call& b) { return a.dtype == b.dtype; }, shown_already};

constexpr Field kDevice{"the kind of device",
                        [](const Call& a, const Call& b) { return a.device == b.device; },
                        [](const Call& call) { return fmt::format("on {}", call.device); }};

constexpr Field kCollective[] = {
    {"the kind of collective", [](const Call& a, const Call& b) { return a.kind == b.kind; },
     shown_already},
    {"where they are in the program",
     [](const Call& a, const Call& b) {
       return a.site.site == b.site.site && a.site.phase == b.site.phase && a.site.step == b.site.step;
     },
     shown_already},
    kShape,
    kDType,
    kDevice,
    {"the reduction", [](const Call& a, const Call& b) { return a.reduction == b.reduction; },
     [](const Call& call) {
       return fmt::format("{} in order {}, hops in {}", name(call.reduction.op),
                          name(call.reduction.order), name(call.reduction.hop));
     }},
    {"the dimension",
     [](const Call& a, const Call& b) { return a.dim == b.dim && a.concat == b.concat; },
     [](const Call& call) {
       return call.kind == CollectiveKind::all_to_all
                  ? fmt::format("split {}, concatenate {}", word(call.dim), word(call.concat))
                  : std::string(word(call.dim));
     }},
    {"the partition", [](const Call& a, const Call& b) { return same_partition(a.part, b.part); },
     [](const Call& call) { return partition_text(call.part); }},
    {"the partition of the concatenated dimension",
     [](const Call& a, const Call& b) { return same_partition(a.concat_part, b.concat_part); },
     [](const Call& call) { return partition_text(call.concat_part); }},
    {"the root", [](const Call& a, const Call& b) { return a.peer == b.peer; },
     [](const Call& call) { return fmt::format("root rank {}", call.peer); }},
    {"the sequence number", [](const Call& a, const Call& b) { return a.sequence == b.sequence; },
     [](const Call& call) { return fmt::format("call {} of its communicator", call.sequence); }},
};
constexpr Field kPair[] = {kShape, kDType, kDevice};

std::string list(std::span<const Post> posts, std::span<const int> members,
                 std::string (*value)(const Call&)) {
  std::string text;
  for (std::size_t i = 0; i < posts.size(); ++i) {
    const std::string extra = value(posts[i].call);
    text += fmt::format("{}rank {}: {}{}{}", i == 0 ? "" : "; ", members[i],
                        describe(posts[i].call), extra.empty() ? "" : ", ", extra);
  }
  return text;
}

}  // namespace

std::string disagreement(std::span<const Post> posts, std::span<const int> members,
                         const std::string& group) {
  for (std::size_t i = 0; i < posts.size(); ++i) {
    if (posts[i].call.defect.empty()) continue;
    return fmt::format("rank {} calls {} over {} with operands that don't fit: {} ({})", members[i],
                       name(posts[i].call.kind), group, posts[i].call.defect,
                       list(posts, members, shown_already));
  }
  const Call& first = posts[0].call;
  const std::span<const Field> fields = first.pairwise() ? std::span<const Field>(kPair) : kCollective;
  for (const Field& field : fields) {
    for (const Post& post : posts) {
      if (field.same(first, post.call)) continue;
      return fmt::format(
          "the ranks of group {} disagree about {}: {}. Every rank must issue the same "
          "collectives in the same order.",
          group, field.what, list(posts, members, field.value));
    }
  }
  return {};
}

}  // namespace shardcheck
