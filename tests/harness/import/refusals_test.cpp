// SPDX-License-Identifier: Apache-2.0
// Plans of other projects that are wrong: one message with line and column, and what to write.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/harness/import/import_models.hpp"
#include "tests/model/input_error.hpp"

namespace shardcheck::testing {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

constexpr ImportSource kHf = ImportSource::hf, kDTensor = ImportSource::dtensor,
                       kVllm = ImportSource::vllm, kDeepSpeed = ImportSource::deepspeed;

struct Refusal {
  const char* name;
  ImportSource source;
  const char* text;
  const char* place;  // "theirs.json:2:3"
  std::vector<std::string> words;
  bool without_model = false;
};

void PrintTo(const Refusal& refusal, std::ostream* out) { *out << refusal.text; }

class Refused : public ::testing::TestWithParam<Refusal> {};

TEST_P(Refused, WithThePlaceAndTheRemedy) {
  const Refusal& refusal = GetParam();
  const Model model = import_model({});
  const std::string message = input_error(
      [&] { imported(refusal.text, refusal.source, refusal.without_model ? nullptr : &model); });
  EXPECT_THAT(message, StartsWith(std::string(refusal.place) + ": "));
  for (const std::string& word : refusal.words) EXPECT_THAT(message, HasSubstr(word));
}

const std::vector<Refusal> kRefusals = {
    {"malformed", kHf, "{\n  \"norm\": \"replicate\",\n}", "theirs.json:3:1", {"not valid JSON"}},
    {"no_object", kHf, "\n [1]", "theirs.json:2:2", {"is no object"}},
    {"no_word", kHf, "{\"norm\":\n  3}", "theirs.json:2:3", {"a style is a word"}},
    {"unknown_style",
     kHf,
     "{\"norm\": \"replicate\",\n \"layers.*.mlp.up_proj\": \"colwse\"}",
     "theirs.json:2:26",
     {"unknown style \"colwse\"", "did you mean \"colwise\"?"}},
    {"orphan",
     kHf,
     "{\"layers.*.mlp.upproj\":\n  \"colwise\"}",
     "theirs.json:1:2",
     {"matches no module of the model", "did you mean \"layers.*.mlp.up_proj\"?"}},
    {"experts_of_a_dense_model",
     kHf,
     "{\"layers.*.mlp.experts.down_proj\": \"rowwise\"}",
     "theirs.json:1:2",
     {"matches no module of the model"}},
    {"two_rules",
     kHf,
     "{\"layers.*.mlp.up_proj\": \"replicate\",\n\n \"model.layers.1.mlp.up_proj\": \"replicate\"}",
     "theirs.json:3:2",
     {"has a rule already", "(line 1)"}},
    {"o_proj_colwise",
     kHf,
     "{\"layers.*.self_attn.q_proj\": \"colwise\", \"layers.*.self_attn.k_proj\": \"colwise\",\n"
     " \"layers.*.self_attn.v_proj\": \"colwise\", \"layers.*.self_attn.o_proj\": \"colwise\"}",
     "theirs.json:2:71",
     {"\"colwise\" cuts o_proj by its output rows, so every rank needs the whole input",
      "q_proj, k_proj and v_proj are cut by output rows already",
      "a rank has only the attention output of its own q heads", "Write \"rowwise\"",
      "by the input columns of the rank's own q heads", "one all_reduce"}},
    {"o_proj_colwise_without_a_model",
     kHf,
     "{\"layers.*.self_attn.q_proj\": \"colwise\", \"layers.*.self_attn.o_proj\": \"colwise\"}",
     "theirs.json:1:71",
     {"q_proj is cut by output rows already"},
     true},
    {"o_proj_column_of_dtensor",
     kDTensor,
     "{\"layers.*.self_attn.q_proj\": \"ColwiseParallel()\",\n \"layers.*.self_attn.o_proj\": "
     "\"ColwiseParallel()\"}",
     "theirs.json:2:31",
     {"Write \"RowwiseParallel()\""}},
    {"o_proj_column_of_vllm",
     kVllm,
     "{\"layers.*.self_attn.qkv_proj\": \"QKVParallelLinear\",\n"
     " \"layers.*.self_attn.o_proj\": \"ColumnParallelLinear\"}",
     "theirs.json:2:31",
     {"Write \"RowParallelLinear\""}},
    {"down_proj_column_of_deepspeed",
     kDeepSpeed,
     "{\"layer_specs\": [{\"patterns\": [\".*mlp\\\\..*\"],\n \"partition_type\": \"column\"}]}",
     "theirs.json:2:20",
     {"cuts down_proj by its output rows", "gate_proj and up_proj are", "Write \"row\""}},
    {"uncovered",
     kHf,
     "{\"layers.*.mlp.gate_proj\": \"colwise\",\n \"layers.*.mlp.down_proj\": \"rowwise\"}",
     "theirs.json:2:28",
     {"the output of up_proj is whole on every rank", "rowwise_split_input"}},
    {"uncovered_without_a_model",
     kHf,
     "{\"layers.*.mlp.down_proj\": \"rowwise\"}",
     "theirs.json:1:28",
     {"takes an input that is cut along its features"},
     true},
    {"gathered_before_rowwise",
     kHf,
     "{\"layers.*.mlp.gate_proj\": \"colwise\", \"layers.*.mlp.up_proj\": \"colwise_rep\",\n"
     " \"layers.*.mlp.down_proj\": \"rowwise\"}",
     "theirs.json:2:28",
     {"the output of up_proj is whole"}},
    {"rowwise_of_a_whole_value",
     kHf,
     "{\"lm_head\": \"rowwise\"}",
     "theirs.json:1:13",
     {"what it reads is whole", "rowwise_split_input"}},
    {"norm_cut",
     kHf,
     "{\"norm\": \"colwise\"}",
     "theirs.json:1:10",
     {"this is a norm", "leave it whole"}},
    {"block_cut", kHf, "{\"layers.*.mlp\": \"colwise\"}", "theirs.json:1:2", {"a block of several modules"}},
    {"block_without_a_model", kHf, "{\"layers.*.mlp\": \"gather\"}", "theirs.json:1:2", {"pass --model"}, true},
    {"point_twice",
     kHf,
     "{\"layers.*.mlp.down_proj\": \"rowwise_rep\",\n \"layers.*.mlp\": \"gather\"}",
     "theirs.json:2:2",
     {"layers.*.mlp.down_proj.out is exchanged", "(line 1)"}},
    {"which_of_several",
     kHf,
     "{\"plans\": {\"A\": {\"tp\": {}}, \"B\": {\"tp\": {}}}}",
     "theirs.json:1:2",
     {"holds 2 plans", "--select", "A, B"}},
    {"nested",
     kHf,
     "{\"a\": [[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[1]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]}",
     "theirs.json:1:39",
     {"no plan"}},
    {"unknown_class",
     kDTensor,
     "{\"norm\":\n \"SequenceParalell()\"}",
     "theirs.json:2:2",
     {"unknown style \"SequenceParalell\"", "did you mean \"SequenceParallel\"?"}},
    {"unknown_argument",
     kDTensor,
     "{\"lm_head\": \"ColwiseParallel(output_layout=Replicate())\"}",
     "theirs.json:1:13",
     {"no argument \"output_layout\"", "did you mean \"output_layouts\"?"}},
    {"unnamed_argument",
     kDTensor,
     "{\"lm_head\": \"ColwiseParallel(Shard(1))\"}",
     "theirs.json:1:13",
     {"by name", "Shard(1)"}},
    {"unknown_layout",
     kDTensor,
     "{\"lm_head\": \"ColwiseParallel(output_layouts=Replicated())\"}",
     "theirs.json:1:13",
     {"unknown layout \"Replicated()\""}},
    {"no_such_dimension",
     kDTensor,
     "{\"lm_head\": \"ColwiseParallel(input_layouts=Shard(3))\"}",
     "theirs.json:1:13",
     {"3 dimensions", "no dimension 3"}},
    {"no_collective_makes_partials",
     kDTensor,
     "{\"lm_head\": \"ColwiseParallel(output_layouts=Partial())\"}",
     "theirs.json:1:13",
     {"partial sums", "no collective does that"}},
    {"no_call", kDTensor, "{\"lm_head\": \"ColwiseParallel(\"}", "theirs.json:1:13", {"is no call"}},
    {"keyword_layouts",
     kDTensor,
     "{\"norm\": {\"style\": \"PrepareModuleInput\", \"input_kwarg_layouts\": []}}",
     "theirs.json:1:10",
     {"keyword arguments are not read"}},
    {"style_missing", kDTensor, "{\"norm\": {\"sequence_dim\": 1}}", "theirs.json:1:10", {"needs \"style\""}},
    {"key_twice", kHf, "{\"lm_head\":\"colwise\", /* \"x\": */ \"lm_head\" :\"rowwise\"}", "theirs.json:1:34", {"stands twice"}},
    {"beside_plan", kDTensor, "{\"plan\": {}, \"activation_dim\": 2}", "theirs.json:1:14", {"unknown key"}},
    {"no_specs",
     kDeepSpeed,
     "{\"tensor_parallel\": {\"preset_model\": \"llama\"}}",
     "theirs.json:1:21",
     {"no \"layer_specs\"", "preset"}},
    {"no_regex",
     kDeepSpeed,
     "{\"layer_specs\": [{\"patterns\": [\"a(\"]}]}",
     "theirs.json:1:32",
     {"no regular expression"}},
    {"no_patterns", kDeepSpeed, "{\"layer_specs\": [{}]}", "theirs.json:1:18", {"needs \"patterns\""}},
    {"unknown_key",
     kDeepSpeed,
     "{\"layer_specs\": [{\"patterns\": [\"a\"], \"partition_typ\": \"row\"}]}",
     "theirs.json:1:38",
     {"did you mean \"partition_type\"?"}},
    {"unknown_partition_type",
     kDeepSpeed,
     "{\"layer_specs\": [{\"patterns\": [\"a\"], \"partition_type\": \"col\"}]}",
     "theirs.json:1:56",
     {"unknown partition_type \"col\""}},
    {"pattern_of_nothing",
     kDeepSpeed,
     "{\"layer_specs\": [{\"patterns\": [\".*w1\"]}]}",
     "theirs.json:1:32",
     {"matches no module of the model"}},
    {"pattern_taken_before",
     kDeepSpeed,
     "{\"layer_specs\": [{\"patterns\": [\".*up_proj\"]},\n {\"patterns\": [\".*mlp.up_proj\"]}]}",
     "theirs.json:2:16",
     {"matches no module of the model that it could cut"}},
    {"strict",
     kDeepSpeed,
     "{\"layer_specs\": [{\"patterns\": [\".*up_proj\"]}],\n \"strict_mode\": true}",
     "theirs.json:2:2",
     {"every linear needs a rule", "q_proj"}},
    {"blocks_that_dont_fit",
     kDeepSpeed,
     "{\"layer_specs\": [{\"patterns\": [\".*up_proj\"], \"partition_type\": \"column\", "
     "\"shape\": [[70, 1], -1]}]}",
     "theirs.json:1:83",
     {"70 + 1 make 71 rows", "has 72"}},
    {"unknown_vllm_class", kVllm, "{\"norm\": \"RmsNorm\"}", "theirs.json:1:10", {"did you mean \"RMSNorm\"?"}},
    {"preset_beside_specs",
     kDeepSpeed,
     "{\"tensor_parallel\": {\"preset_model\": \"llama\", \"partition_config\": {\"layer_specs\": []}}}",
     "theirs.json:1:22",
     {"write them out"}},
    {"heads_where_there_are_none",
     kVllm,
     "{\"layers.*.self_attn.o_proj\": \"QKVParallelLinear\"}",
     "theirs.json:1:31",
     {"cuts the rows of q, k and v by heads"}},
    {"row_of_a_whole_input",
     kDeepSpeed,
     "{\"layer_specs\": [{\"patterns\": [\".*q_proj\"], \"partition_type\": \"row\"}]}",
     "theirs.json:1:63",
     {"what it reads is whole on every rank; cut its output rows instead"}},
    {"vllm_without_a_model", kVllm, "{\"norm\": \"RMSNorm\"}", "theirs.json", {"pass --model"}, true},
    {"vllm_flag",
     kVllm,
     "{\"layers.*.mlp.down_proj\": \"RowParallelLinear(reduce_results=0)\"}",
     "theirs.json:1:28",
     {"reduce_results is True or False"}}};

INSTANTIATE_TEST_SUITE_P(Imports, Refused, ::testing::ValuesIn(kRefusals),
                         [](const auto& test) { return std::string(test.param.name); });

// The library reads a regular expression by recursion, on a stack that has an end.
TEST(Imports, APatternIsNotReadAtAnyLength) {
  const Model model = import_model({});
  const auto read = [&](std::size_t depth) {
    const std::string pattern = std::string(depth, '(') + "x" + std::string(depth, ')');
    return input_error([&] {
      imported("{\"layer_specs\": [{\"patterns\": [\"" + pattern + "\"]}]}", kDeepSpeed, &model);
    });
  };
  EXPECT_THAT(read(499), HasSubstr("matches no module"));
  EXPECT_THAT(read(200000), AllOf(StartsWith("theirs.json:1:32"), HasSubstr("more than 1000 characters")));
}

TEST(Imports, AFileOfOnePlanHasNoneToSelect) {
  ImportOptions options;
  options.select = "LlamaConfig";
  EXPECT_THAT(input_error([&] { import_plan("{}", "theirs.json", options); }),
              HasSubstr("holds one plan"));
}

// Any file at all: a plan, or an InputError.
TEST(Imports, AnyPrefixOfAFileIsRefusedOrRead) {
  const Model model = import_model({});
  const std::string texts[] = {
      R"json({"a": {"style": "PrepareModuleInput", "input_layouts": ["Shard(1)", null]}, /* c */
                  "b": "X(a=[Y(1)])"})json",
      R"json({"layer_specs": [{"patterns": [".*up\\.\"x"], "shape": [[1, 2], -1]}, {}],
                  "strict_mode": true} // end)json"};
  for (const std::string& text : texts) {
    for (std::size_t size = 0; size <= text.size(); ++size) {
      for (const ImportSource source : {kHf, kDTensor, kDeepSpeed, kVllm}) {
        try {
          imported(text.substr(0, size), source, &model);
        } catch (const InputError& error) {
          EXPECT_THAT(error.what(), StartsWith("theirs.json"));
        }
      }
    }
  }
}

}  // namespace
}  // namespace shardcheck::testing
