// SPDX-License-Identifier: Apache-2.0
// Plans that aren't: every mistake is named with its place, and no text at all makes the parser crash.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <random>
#include <sstream>

#include "sharded/plan.hpp"
#include "tests/model/input_error.hpp"

namespace shardcheck {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

struct Wrong {
  const char* name;
  const char* text;
  const char* place;  // after the file's name
  std::vector<std::string> says;
};
void PrintTo(const Wrong& given, std::ostream* out) { *out << given.name; }

class EveryMistake : public ::testing::TestWithParam<Wrong> {};

// Each plan has its mistake on line 3; the comment on line 1 holds the wrong words as well.
const Wrong kMistakes[] = {
    {"truncated", "{\n\"name\": \"p\",\n\"mesh\": [\"a\"", ":3:13: ", {"not valid JSON"}},
    {"comma_missing", "{\n\"name\": \"p\"\n\"mesh\": [\"a\"]}", ":3:6: ", {"not valid JSON"}},
    {"empty", "", ":1:1: ", {"not valid JSON"}},
    {"open_comment", "{\n\"name\": \"p\",\n/* \"mesh\": [\"a\"]}", ":3:", {"not valid JSON"}},
    {"not_an_object", "// \n\n[1, 2]", ":3:1: ", {"the plan must be an object, not array"}},
    {"number_too_large", "{\n\"name\": \"p\",\n\"mesh\": 1e999}", ":3:9: ", {"out of the range"}},
    {"no_name", "{\n\n\"mesh\": [\"a\"]}", ":1:1: ", {"the plan needs \"name\""}},
    {"no_mesh", "{\n\n\"name\": \"p\"}", ":1:1: ", {"the plan needs \"mesh\"", "[\"tp\"]"}},
    {"name_is_a_number", "{\n\"mesh\": [\"a\"],\n\"name\": 7}", ":3:9: ", {"name: expected a string, found 7"}},
    {"name_is_a_list",
     "{\n\"mesh\": [\"a\"],\n\"name\": [[[]]]}",
     ":3:9: ",
     {"name: expected a string, found array"}},
    {"mesh_is_a_string",
     "{\n\"name\": \"p\",\n\"mesh\": \"a\"}",
     ":3:10: ",
     {"\"mesh\" must be a list of axis names"}},
    {"mesh_is_empty", "{\n\"name\": \"p\",\n\"mesh\": []}", ":3:9: ", {"\"mesh\" must be a list of axis names"}},
    {"axis_twice",
     "{\n\"name\": \"p\",\n\"mesh\": [\"a\", \"b\", \"a\"]}",
     ":3:21: ",
     {"names the axis \"a\" twice"}},
    {"key_twice",
     "{\"mesh\": [\"a\"],\n\n\"name\": \"p\", \"name\": \"q\"}",
     ":3:15: ",
     {"\"name\" stands twice"}},
    {"unknown_key",
     "// wieghts\n{\"name\": \"p\", \"mesh\": [\"a\"],\n\"wieghts\": {}}",
     ":3:2: ",
     {"unknown key \"wieghts\"", "did you mean \"weights\"?"}},
    {"families_and_weights",
     "{\"name\": \"p\", \"mesh\": [\"a\"], \"weights\": {},\n\n\"families\": {}}",
     ":3:2: ",
     {"either \"families\" or"}},
    {"unknown_key_in_a_family",
     "// collective\n{\"name\": \"p\", \"mesh\": [\"a\"], \"families\": {\"llama\": "
     "{\n\"collective\": {}}}}",
     ":3:2: ",
     {"llama has the unknown key \"collective\"", "did you mean \"collectives\"?"}},
    {"weights_is_a_list",
     "{\"name\": \"p\", \"mesh\": [\"a\"],\n\n\"weights\": []}",
     ":3:12: ",
     {"must be an object, not array"}},
    {"unknown_axis",
     "// tp\n{\"name\": \"p\", \"mesh\": [\"a\"], \"weights\": {\n\"m\": {\"tp\": "
     "\"shard(out)\"}}}",
     ":3:8: ",
     {"unknown mesh axis \"tp\"", "mesh is [a]"}},
    {"unknown_axis_of_a_step",
     "// tp\n{\"name\": \"p\", \"mesh\": [\"a\", \"b\"], \"collectives\": {\n\"m.out\": "
     "\"all_reduce(sum, [a, tp])\"}}",
     ":3:31: ",
     {"unknown mesh axis \"tp\"", "mesh is [a, b]"}},
    {"unknown_cut",
     "// split(out)\n{\"name\": \"p\", \"mesh\": [\"a\"], \"weights\": {\n\"m\": {\"a\": "
     "\"split(out)\"}}}",
     ":3:13: ",
     {"unknown cut \"split(out)\"", "replicate, shard(D) or shard(D by U)"}},
    {"unknown_dimension_of_a_cut",
     "// oot\n{\"name\": \"p\", \"mesh\": [\"a\"], \"weights\": {\n\"m\": {\"a\": "
     "\"shard(oot)\"}}}",
     ":3:19: ",
     {"unknown dimension \"oot\"", "did you mean \"out\"?"}},
    {"unknown_unit",
     "// haed\n{\"name\": \"p\", \"mesh\": [\"a\"], \"weights\": {\n\"m\": {\"a\": \"shard(out by "
     "haed)\"}}}",
     ":3:26: ",
     {"unknown unit \"haed\"", "did you mean \"head\"?"}},
    {"unit_without_by",
     "{\"name\": \"p\", \"mesh\": [\"a\"], \"weights\": {\n\n\"m\": {\"a\": \"shard(out head)\"}}}",
     ":3:13: ",
     {"unknown cut", "shard(D by U)"}},
    {"too_many_words",
     "{\"name\": \"p\", \"mesh\": [\"a\"], \"weights\": {\n\n\"m\": {\"a\": \"shard(out by head "
     "too)\"}}}",
     ":3:13: ",
     {"unknown cut"}},
    {"cut_without_dimension",
     "{\"name\": \"p\", \"mesh\": [\"a\"], \"weights\": {\n\n\"m\": {\"a\": \"shard()\"}}}",
     ":3:13: ",
     {"unknown dimension \"\""}},
    {"cut_is_a_number",
     "{\"name\": \"p\", \"mesh\": [\"a\"], \"weights\": {\n\n\"m\": {\"a\": 3}}}",
     ":3:12: ",
     {"m: expected a string, found 3"}},
    {"ranges_without_shard",
     "{\"name\": \"p\", \"mesh\": [\"a\"], \"weights\": {\n\n\"m\": {\"a\": {\"ranges\": {}}}}}",
     ":3:12: ",
     {"an explicit cut needs \"shard\""}},
    {"ranges_of_no_size",
     "{\"name\": \"p\", \"mesh\": [\"a\"], \"weights\": {\n\n\"m\": {\"a\": {\"shard\": \"out\", "
     "\"ranges\": {\"two\": []}}}}}",
     ":3:41: ",
     {"keyed by axis size, not \"two\""}},
    {"ranges_of_size_zero",
     "{\"name\": \"p\", \"mesh\": [\"a\"], \"weights\": {\n\n\"m\": {\"a\": {\"shard\": \"out\", "
     "\"ranges\": {\"0\": []}}}}}",
     ":3:41: ",
     {"keyed by axis size, not \"0\""}},
    {"ranges_of_fewer_ranks",
     "{\"name\": \"p\", \"mesh\": [\"a\"], \"weights\": {\n\n\"m\": {\"a\": {\"shard\": \"out\", "
     "\"ranges\": {\"2\": [[[0,3]]]}}}}}",
     ":3:45: ",
     {"ranges for 2 ranks must list, per rank"}},
    {"range_of_three_numbers",
     "{\"name\": \"p\", \"mesh\": [\"a\"], \"weights\": {\n\n\"m\": {\"a\": {\"shard\": \"out\", "
     "\"ranges\": {\"1\": [[[0,3,4]]]}}}}}",
     ":3:47: ",
     {"half-open [begin, end) pairs"}},
    {"range_of_fractions",
     "{\"name\": \"p\", \"mesh\": [\"a\"], \"weights\": {\n\n\"m\": {\"a\": {\"shard\": \"out\", "
     "\"ranges\": {\"1\": [[[0,3.5]]]}}}}}",
     ":3:47: ",
     {"half-open [begin, end) pairs"}},
    {"range_backwards",
     "{\"name\": \"p\", \"mesh\": [\"a\"], \"weights\": {\n\n\"m\": {\"a\": {\"shard\": \"out\", "
     "\"ranges\": {\"2\": [[[5,0]],[[0,9]]]}}}}}",
     ":3:47: ",
     {"0 <= begin <= end"}},
    {"range_negative",
     "{\"name\": \"p\", \"mesh\": [\"a\"], \"weights\": {\n\n\"m\": {\"a\": {\"shard\": \"out\", "
     "\"ranges\": {\"2\": [[[0,5]],[[-1,9]]]}}}}}",
     ":3:55: ",
     {"0 <= begin <= end"}},
    {"range_beyond_64_bits",
     "{\"name\": \"p\", \"mesh\": [\"a\"], \"weights\": {\n\n\"m\": {\"a\": {\"shard\": \"out\", "
     "\"ranges\": {\"1\": [[[0,18446744073709551615]]]}}}}}",
     ":3:47: ",
     {"half-open [begin, end) pairs"}},
    {"the_second_of_two_like_words",
     "{\"name\": \"haed\", \"mesh\": [\"a\"], \"weights\": {\"haed\": {\"a\": \"shard(out by head)\"},\n\n"
     "\"m\": {\"a\": {\"by\": \"haed\", \"shard\": \"out\"}}}}",
     ":3:20: ",
     {"unknown unit \"haed\""}},
    {"a_key_of_the_second_family",
     "{\"name\": \"p\", \"mesh\": [\"a\"], \"families\": {\"x\": {\"weights\": {\"m\": {\"a\": \"shard(out)\"}}},\n\n"
     "\"y\": {\"weights\": {\"m\": {\"b\": \"shard(out)\"}}}}}",
     ":3:26: ",
     {"unknown mesh axis \"b\""}},
    {"a_key_twice_deep_inside",
     "{\"name\": \"p\", \"mesh\": [\"a\"], \"weights\": {\"m\": {\"a\": \"shard(out)\"},\n\n"
     "\"n\": {\"a\": \"shard(out)\", \"a\": \"shard(in)\"}}}",
     ":3:27: ",
     {"the key \"a\" stands twice"}},
    {"the_third_step_of_a_list",
     "{\"name\": \"p\", \"mesh\": [\"a\"], \"collectives\": {\"m.out\": [\"slice(tokens, a)\", \"slice(tokens, a)\",\n\n"
     "\"slice(tokens, b)\"]}}",
     ":3:16: ",
     {"unknown mesh axis \"b\""}},
    {"op_is_a_number",
     "{\"name\": \"p\", \"mesh\": [\"a\"], \"ops\": {\n\n\"m\": 4}}",
     ":3:6: ",
     {"expected a string, found 4"}},
    {"unknown_step",
     "// all_reduse\n{\"name\": \"p\", \"mesh\": [\"a\"], \"collectives\": {\n\"m.out\": "
     "\"all_reduse(sum, a)\"}}",
     ":3:11: ",
     {"unknown collective \"all_reduse\"", "did you mean \"all_reduce\"?"}},
    {"send_belongs_to_ops",
     "{\"name\": \"p\", \"mesh\": [\"a\"], \"collectives\": {\n\n\"m.out\": \"send(1, a)\"}}",
     ":3:11: ",
     {"unknown collective \"send\""}},
    {"step_without_arguments",
     "{\"name\": \"p\", \"mesh\": [\"a\"], \"collectives\": {\n\n\"m.out\": \"all_reduce\"}}",
     ":3:11: ",
     {"needs all_reduce(sum|max, A)"}},
    {"unclosed_step",
     "{\"name\": \"p\", \"mesh\": [\"a\"], \"collectives\": {\n\n\"m.out\": \"all_reduce(sum, "
     "a\"}}",
     ":3:11: ",
     {"unknown collective"}},
    {"text_after_a_step",
     "{\"name\": \"p\", \"mesh\": [\"a\"], \"collectives\": {\n\n\"m.out\": \"slice(vocab, a) "
     "now\"}}",
     ":3:11: ",
     {"unknown collective"}},
    {"argument_missing",
     "{\"name\": \"p\", \"mesh\": [\"a\"], \"collectives\": {\n\n\"m.out\": \"reduce_scatter(sum, "
     "a)\"}}",
     ":3:11: ",
     {"needs reduce_scatter(sum, D, A)"}},
    {"argument_too_many",
     "{\"name\": \"p\", \"mesh\": [\"a\"], \"collectives\": {\n\n\"m.out\": \"all_gather(vocab, a, "
     "a)\"}}",
     ":3:11: ",
     {"needs all_gather(D, A)"}},
    {"unknown_reduction",
     "// min\n{\"name\": \"p\", \"mesh\": [\"a\"], \"collectives\": {\n\"m.out\": "
     "\"all_reduce(min, a)\"}}",
     ":3:22: ",
     {"unknown reduction \"min\"; use sum|max"}},
    {"maximum_scattered",
     "{\"name\": \"p\", \"mesh\": [\"a\"], \"collectives\": {\n\n\"m.out\": \"reduce_scatter(max, "
     "tokens, a)\"}}",
     ":3:26: ",
     {"unknown reduction \"max\"; use sum"}},
    {"unknown_dimension_of_a_step",
     "// vocabulary\n{\"name\": \"p\", \"mesh\": [\"a\"], \"collectives\": {\n\"m.out\": "
     "\"all_gather(vocabulary, a)\"}}",
     ":3:22: ",
     {"unknown dimension \"vocabulary\"", "did you mean \"vocab\"?"}},
    {"weight_dimension_of_a_step",
     "{\"name\": \"p\", \"mesh\": [\"a\"], \"collectives\": {\n\n\"m.out\": \"all_gather(out, "
     "a)\"}}",
     ":3:22: ",
     {"out is a weight's dimension", "tokens, sequence, features"}},
    {"root_is_a_word",
     "{\"name\": \"p\", \"mesh\": [\"a\"], \"collectives\": {\n\n\"m.out\": \"broadcast(first, "
     "a)\"}}",
     ":3:21: ",
     {"the root must be a rank number"}},
    {"root_is_negative",
     "{\"name\": \"p\", \"mesh\": [\"a\"], \"collectives\": {\n\n\"m.out\": \"broadcast(-1, a)\"}}",
     ":3:21: ",
     {"the root must be a rank number"}},
    {"group_without_axes",
     "{\"name\": \"p\", \"mesh\": [\"a\"], \"collectives\": {\n\n\"m.out\": \"all_reduce(sum, "
     "[])\"}}",
     ":3:11: ",
     {"names no mesh axis"}},
    {"group_with_an_axis_twice",
     "{\"name\": \"p\", \"mesh\": [\"a\"], \"collectives\": {\n\n\"m.out\": \"all_reduce(sum, [a, "
     "a])\"}}",
     ":3:11: ",
     {"names the axis \"a\" twice"}},
    {"exchange_within_one_dimension",
     "{\"name\": \"p\", \"mesh\": [\"a\"], \"collectives\": {\n\n\"m.out\": \"all_to_all(head, "
     "vocab, a)\"}}",
     ":3:11: ",
     {"splits and joins the same dimension"}},
    {"step_is_an_object",
     "{\"name\": \"p\", \"mesh\": [\"a\"], \"collectives\": {\n\n\"m.out\": {}}}",
     ":3:10: ",
     {"m.out: expected a string, found object"}},
    {"step_in_a_list_is_a_number",
     "{\"name\": \"p\", \"mesh\": [\"a\"], \"collectives\": {\n\n\"m.out\": [4]}}",
     ":3:11: ",
     {"m.out: expected a string, found 4"}},
    {"unknown_phase",
     "// training\n{\"name\": \"p\", \"mesh\": [\"a\"], \"phase\": {\n\"training\": {}}}",
     ":3:2: ",
     {"unknown phase \"training\"; use prefill or decode"}},
    {"phase_is_a_list",
     "{\"name\": \"p\", \"mesh\": [\"a\"], \"phase\": {\n\n\"decode\": []}}",
     ":3:11: ",
     {"phase.decode must be an object"}},
};

INSTANTIATE_TEST_SUITE_P(PlanText, EveryMistake, ::testing::ValuesIn(kMistakes),
                         [](const auto& test) { return std::string(test.param.name); });

TEST_P(EveryMistake, IsNamedWithItsPlace) {
  const std::string message = input_error([&] { parse_plan(GetParam().text, "p.json"); });
  EXPECT_THAT(message, StartsWith(std::string("p.json") + GetParam().place));
  for (const std::string& part : GetParam().says) EXPECT_THAT(message, HasSubstr(part));
}

TEST(PlanText, FindsTheMistakeBehindCommentsAndStringsThatLookLikeThem) {
  const std::string text =
      "{\"name\": \"http://x /* y\", \"mesh\": [\"a\"], // \"oot\" /*\n"
      "/* \"oot\" // */ \"weights\": {\"m\\\"//\": {\"a\":\n"
      "  \"shard(oot)\"}}}";
  EXPECT_THAT(input_error([&] { parse_plan(text, "p"); }), StartsWith("p:3:10: unknown dimension"));
}

std::string shipped_text(const std::string& name) {
  std::ifstream file(std::string(SHARDCHECK_SOURCE_DIR) + "/fixtures/plans/" + name);
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}

/// Whether the text parses. Anything but a plan or an InputError with a message is a failure of the test.
bool parses(const std::string& text) {
  try {
    parse_plan(text, "p.json");
    return true;
  } catch (const InputError& error) {
    EXPECT_THAT(error.what(), StartsWith("p.json:")) << text;
    return false;
  }
}

TEST(PlanFuzz, EveryPrefixOfAPlanIsRefusedInOneSentence) {
  const std::string text = shipped_text("megatron.json");
  ASSERT_GT(text.size(), 1000u);
  const std::size_t end = text.find_last_of('}');
  for (std::size_t length = 0; length <= text.size(); ++length)
    EXPECT_EQ(parses(text.substr(0, length)), length > end) << length;
}

TEST(PlanFuzz, ChangedBytesGiveAPlanOrASentence) {
  const std::string text = shipped_text("megatron.json");
  std::mt19937 random(7);
  int good = 0;
  for (int round = 0; round < 4000; ++round) {
    std::string changed = text;
    for (int i = 0; i <= round % 3; ++i) {
      const std::size_t at = random() % changed.size();
      if (round % 2 == 0) {
        changed[at] = static_cast<char>(random());
      } else if (round % 4 == 1) {
        changed.erase(at, 1 + random() % 5);
      } else {
        changed.insert(at, 1, "{}[](),:\"\\*/ 0e-"[random() % 16]);
      }
    }
    good += parses(changed) ? 1 : 0;
  }
  EXPECT_GT(good, 400);  // a change inside a comment or a name
  EXPECT_LT(good, 3600);
}

TEST(PlanFuzz, DeepNestingIsRefused) {
  for (const std::string open : {"[", "{\"a\":"}) {
    std::string text = "{\"name\": \"p\", \"mesh\": ";
    for (int i = 0; i < 200000; ++i) text += open;
    EXPECT_FALSE(parses(text));
    text += "1";
    for (int i = 0; i < 200000; ++i) text += open == "[" ? "]" : "}";
    EXPECT_FALSE(parses(text + "}"));
  }
}

}  // namespace
}  // namespace shardcheck
