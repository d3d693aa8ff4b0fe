// SPDX-License-Identifier: Apache-2.0
// Plans that don't fit their model or mesh: refused in one sentence, before anything runs.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/model/input_error.hpp"
#include "tests/sharded/small_models.hpp"

namespace shardcheck {
namespace {

using ::testing::HasSubstr;

struct Refused {
  const char* name;
  std::string weights, collectives;
  int ranks;
  SmallModel model;
  std::vector<std::string> says;
};
void PrintTo(const Refused& given, std::ostream* out) { *out << given.name; }

class EveryRefusal : public ::testing::TestWithParam<Refused> {};

std::vector<Refused> refusals() {
  const SmallModel gpt2{"gpt2", 5, 5, 8, 40, 53, 83, 1};
  const auto q = [](const std::string& cut) {
    return "\"layers.*.self_attn.q_proj\": {\"tp\": " + cut + "}";
  };
  const auto k = [](const std::string& cut) {
    return "\"layers.*.self_attn.k_proj\": {\"tp\": " + cut + "}";
  };
  const auto ranges = [](const std::string& by, const std::string& list) {
    return R"json({"shard": "out", "by": ")json" + by + R"json(", "ranges": )json" + list + "}";
  };
  return {
      {"nothing_matched",
       R"json("layers.*.mlp.upproj": {"tp": "shard(out)"})json",
       "",
       2,
       {},
       {"\"layers.*.mlp.upproj\" matches no module", "did you mean \"layers.0.mlp.up_proj\"?"}},
      {"another_familys_module",
       R"json("h.*.mlp.c_fc": {"tp": "shard(out)"})json",
       "",
       1,
       {},
       {"matches no module"}},
      {"matched_twice",
       R"json("layers.*.mlp.up_proj": {"tp": "shard(out)"}, "layers.1.mlp.*": {"tp": "shard(in)"})json",
       "",
       1,
       {},
       {"layers.1.mlp.up_proj is matched twice",
        "\"layers.*.mlp.up_proj\" and \"layers.1.mlp.*\""}},
      {"matched_twice_by_prefix",
       R"json("norm": {"tp": "replicate"}, "model.norm": {"tp": "replicate"})json",
       "",
       1,
       {},
       {"norm is matched twice", "\"model.norm\""}},
      {"no_point_matched",
       "",
       R"json("layers.*.mlp.down_proj.output": "all_reduce(sum, tp)")json",
       2,
       {},
       {"matches no point", "did you mean \"layers.0.mlp.down_proj.out\"?"}},
      {"ids_are_not_cut",
       "",
       R"json("embed_tokens.in": "slice(tokens, tp)")json",
       2,
       {},
       {"matches no point", "did you mean \"embed_tokens.out\"?"}},
      {"point_matched_twice",
       "",
       R"json("layers.*.mlp.down_proj.out": "all_reduce(sum, tp)", "layers.0.mlp.*.out": "slice(tokens, tp)")json",
       2,
       {},
       {"the point layers.0.mlp.down_proj.out is matched twice"}},
      {"no_statistic_of_a_linear",
       "",
       R"json("lm_head.stat": "all_reduce(sum, tp)")json",
       2,
       {},
       {"matches no point"}},
      {"more_ranks_than_heads",
       q("\"shard(out by head)\""),
       "",
       10,
       {},
       {"layers.0.self_attn.q_proj is cut by head", "9 heads", "tp=10",
        "largest size that works is 9", "explicit ranges may leave a rank without heads"}},
      {"more_ranks_than_heads_of_a_fused_tensor",
       R"json("h.*.attn.c_attn": {"tp": "shard(out by head)"})json",
       "",
       6,
       gpt2,
       {"5 heads", "largest size that works is 5"}},
      {"more_ranks_than_heads_in_columns",
       R"json("layers.*.self_attn.o_proj": {"tp": "shard(in by head)"})json",
       "",
       16,
       {},
       {"o_proj is cut by head", "largest size that works is 9"}},
      {"k_by_head", k("\"shard(out by head)\""), "", 2, {}, {"has 3 kv heads, not 9 heads; cut it by kv_head"}},
      {"k_by_head_on_one_rank_too", k("\"shard(out by head)\""), "", 1, {}, {"cut it by kv_head"}},
      {"up_by_head",
       R"json("layers.*.mlp.up_proj": {"tp": "shard(out by head)"})json",
       "",
       2,
       {},
       {"`by head` fits the rows of q, k, v or a fused qkv, the columns of o and norms of q or k"}},
      {"up_by_kv_head",
       R"json("layers.*.mlp.up_proj": {"tp": "shard(out by kv_head)"})json",
       "",
       2,
       {},
       {"`by kv_head` fits the rows of q, k and v, the columns of o"}},
      {"fused_by_kv_head",
       R"json("h.*.attn.c_attn": {"tp": "shard(out by kv_head)"})json",
       "",
       2,
       gpt2,
       {"a fused qkv is cut by head"}},
      {"unquantised_by_group",
       R"json("layers.*.mlp.down_proj": {"tp": "shard(in by group)"})json",
       "",
       2,
       {},
       {"`by group` needs a quantised checkpoint"}},
      {"vocabulary_of_a_linear",
       q("\"shard(vocab)\""),
       "",
       2,
       {},
       {"q_proj can't be cut that way", "out and in"}},
      {"rows_of_an_embedding", R"json("embed_tokens": {"tp": "shard(out)"})json", "", 2, {}, {"vocab and features"}},
      {"columns_of_a_norm", R"json("norm": {"tp": "shard(in)"})json", "", 2, {}, {"has the dimensions features"}},
      {"tokens_of_a_weight", R"json("lm_head": {"tp": "shard(tokens)"})json", "", 2, {}, {"out (vocab) and in"}},
      {"size_without_ranges",
       q(ranges("head", R"json({"2": [[[0,5]],[[5,9]]], "3": [[],[],[[0,9]]]})json")),
       "",
       4,
       {},
       {"lists ranges for 2, 3 ranks only, not for 4"}},
      {"root_outside_the_group",
       "",
       R"json("embed_tokens.out": "broadcast(2, tp)")json",
       2,
       {},
       {"broadcast(2, tp) at embed_tokens.out has root 2", "ranks 0 to 1"}},
  };
}

INSTANTIATE_TEST_SUITE_P(Resolve, EveryRefusal, ::testing::ValuesIn(refusals()),
                         [](const auto& test) { return std::string(test.param.name); });

TEST_P(EveryRefusal, IsOneSentence) {
  const Refused& given = GetParam();
  const Plan plan = tp_plan(given.weights, given.collectives);
  const std::string message = input_error(
      [&] { resolve(plan, shapes(given.model), line(given.ranks)); });
  EXPECT_THAT(message, ::testing::MatchesRegex("test.json:1:[0-9]+: .*"));
  for (const std::string& part : given.says) EXPECT_THAT(message, HasSubstr(part));
}

TEST(Resolve, OpsSayWhereTheyAreWrong) {
  const Model model = shapes({});
  const auto refused = [&](const std::string& ops) {
    const Plan plan = parse_plan("{\"name\": \"p\", \"mesh\": [\"tp\"], \"ops\": {\n" + ops + "}}", "test.json");
    return input_error([&] { resolve(plan, model, line(2)); });
  };
  EXPECT_THAT(refused("\n  \"layers.*.mlp.atc\": \"mine\""),
              ::testing::AllOf(HasSubstr("test.json:3:4: \"layers.*.mlp.atc\" in \"ops\" matches no value"),
                               HasSubstr("did you mean \"layers.0.mlp.act\"?")));
  EXPECT_THAT(refused("\"layers.*.mlp.act\": \"mine\",\n\"layers.1.mlp.*\": \"yours\""),
              HasSubstr("test.json:3:2: two of \"ops\" match layers.1.mlp.act, mine and yours; keep one"));
}

TEST(Resolve, RefusesAnotherMesh) {
  const Model model = shapes({});
  const Plan plan = megatron();
  for (const Mesh& mesh : {Mesh{{{"x", 2}}}, Mesh{{{"tp", 2}, {"dp", 1}}}}) {
    const std::string message = input_error([&] { resolve(plan, model, mesh); });
    EXPECT_THAT(message, HasSubstr("the plan's mesh is [tp]"));
    EXPECT_THAT(message, HasSubstr(to_string(mesh)));
    EXPECT_THAT(message, HasSubstr("--mesh tp=N"));
  }
}

}  // namespace
}  // namespace shardcheck
