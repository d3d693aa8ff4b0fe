// SPDX-License-Identifier: Apache-2.0
#include "harness/inputs.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "harness/verify.hpp"
#include "tests/model/input_error.hpp"
#include "tests/model/temp_folder.hpp"

namespace shardcheck::testing {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

/// Programs of one model at some TP sizes; the ops that they point to live as long.
struct Programs {
  Programs(const std::string& name, const std::vector<int>& sizes,
           const std::string& plan = "megatron")
      : model(load_model(name)) {
    for (const int tp : sizes) {
      const Mesh mesh{{{"tp", tp}}};
      owned.push_back(std::make_unique<Program>(
          build_program(model, resolve(load_plan(plan), model, mesh), parts.ops)));
      list.push_back(owned.back().get());
    }
  }
  Sequences make(const InputOptions& options) const {
    return make_sequences(options, model.config(), list);
  }

  VerifyParts parts = builtin_parts();
  Model model;
  std::vector<std::unique_ptr<Program>> owned;
  std::vector<const Program*> list;
};

InputOptions tokens(std::int64_t n, std::int64_t batch = 1) {
  InputOptions options;
  options.tokens = n;
  options.batch = batch;
  return options;
}

// With fewer sequences than ranks some would never compute an attention.
TEST(Inputs, EveryRankHasASequenceWhereAPlanCutsThem) {
  InputOptions options;
  options.tokens = 9;
  const Programs cut("tiny-llama", {1, 2, 4}, "attention_dp"), whole("tiny-llama", {1, 2, 4});
  const Sequences sequences = cut.make(options);
  ASSERT_EQ(sequences.size(), 5u);  // one more than ranks: one of them has two
  for (std::size_t i = 0; i < sequences.size(); ++i) EXPECT_EQ(sequences[i].size(), 9 - i);
  EXPECT_EQ(whole.make(options).size(), 1u);
  EXPECT_EQ(Programs("tiny-llama", {1}, "attention_dp").make(options).size(), 1u);
  options.batch = 2;
  EXPECT_EQ(cut.make(options).size(), 2u);
  options.lengths = {3, 4, 5};
  EXPECT_EQ(cut.make(options).size(), 3u);
}

// 257 rows on 4 ranks: 65, 64, 64, 64; on 2: 129, 128.
TEST(Inputs, BordersOfTheLargestGroupComeFirst) {
  const Programs programs("tiny-odd-vocab", {2, 4});
  const Sequences sequences = programs.make(tokens(12));
  ASSERT_EQ(sequences.size(), 1u);
  ASSERT_EQ(sequences[0].size(), 12u);
  const std::vector<std::int64_t> first(sequences[0].begin(), sequences[0].begin() + 4);
  EXPECT_THAT(first, ElementsAre(0, 65, 129, 193));
  const std::vector<std::int64_t> last(sequences[0].begin() + 4, sequences[0].begin() + 8);
  EXPECT_THAT(last, ElementsAre(64, 128, 192, 256));
  // 0, 129 and 128, 256 of the two ranks stand there already.
  for (const std::int64_t id : sequences[0]) {
    EXPECT_GE(id, 0);
    EXPECT_LT(id, 257);
  }
}

TEST(Inputs, EveryRankOfEveryGroupHasAnId) {
  for (const std::string model : {"tiny-llama", "tiny-gpt2", "tiny-odd-vocab"}) {
    const Programs programs(model, {1, 2, 3, 4});
    const Sequences sequences = programs.make(tokens(16));
    for (const int tp : {2, 3, 4}) {
      const Partition rows = Partition::balanced(programs.model.config().vocab_size, tp);
      for (int rank = 0; rank < tp; ++rank) {
        const Range mine = rows.of(rank)[0];
        EXPECT_TRUE(std::any_of(sequences[0].begin(), sequences[0].end(),
                                [&](std::int64_t id) { return mine.begin <= id && id < mine.end; }))
            << model << " tp " << tp << " rank " << rank;
      }
    }
  }
}

// A plan that doesn't cut the vocabulary has the borders of the even cut.
TEST(Inputs, BordersOfAReplicatedVocabulary) {
  const Programs programs("tiny-llama", {4}, "replicated");
  EXPECT_THAT(programs.make(tokens(4))[0], ElementsAre(0, 80, 160, 240));
}

TEST(Inputs, FewerTokensThanBordersKeepTheFirst) {
  const Programs programs("tiny-llama", {4});
  EXPECT_THAT(programs.make(tokens(1)), ElementsAre(ElementsAre(0)));
  EXPECT_THAT(programs.make(tokens(3)), ElementsAre(ElementsAre(0, 80, 160)));
}

TEST(Inputs, BatchesShrinkByOneDownToOne) {
  const Programs programs("tiny-llama", {2});
  const Sequences sequences = programs.make(tokens(3, 5));
  std::vector<std::size_t> lengths;
  for (const auto& ids : sequences) lengths.push_back(ids.size());
  EXPECT_THAT(lengths, ElementsAre(3, 2, 1, 1, 1));
}

TEST(Inputs, ExplicitLengthsWin) {
  const Programs programs("tiny-llama", {2});
  InputOptions options = tokens(9, 2);
  options.lengths = {5, 1, 17};
  const Sequences sequences = programs.make(options);
  ASSERT_EQ(sequences.size(), 3u);
  EXPECT_EQ(sequences[2].size(), 17u);
}

TEST(Inputs, SeedsDiffer) {
  const Programs programs("tiny-llama", {2});
  InputOptions options = tokens(40);
  const Sequences one = programs.make(options), again = programs.make(options);
  EXPECT_EQ(one, again);
  options.seed = 2;
  const Sequences two = programs.make(options);
  EXPECT_NE(one, two);
  EXPECT_TRUE(std::equal(one[0].begin(), one[0].begin() + 4, two[0].begin())) << "the borders stay";
  EXPECT_GT(std::set<std::int64_t>(one[0].begin(), one[0].end()).size(), 20u);
}

TEST(Inputs, IdsFromAFile) {
  const Programs programs("tiny-llama", {2});
  const TempFolder folder;
  InputOptions options = tokens(99, 3);
  options.ids = folder.write("ids.txt", "1 2 3\n\n  7,8\t9 \r\n319\n");
  EXPECT_THAT(programs.make(options),
              ElementsAre(ElementsAre(1, 2, 3), ElementsAre(7, 8, 9), ElementsAre(319)));
}

TEST(Inputs, FilesThatCanNotBeUsed) {
  const Programs programs("tiny-llama", {2});
  const TempFolder folder;
  struct Bad {
    std::string text, says;
  };
  for (const Bad& bad : std::vector<Bad>{
           {"", "holds no token ids"},
           {"\n \n", "holds no token ids"},
           {"1 2\n3 x4\n", ":2: \"x4\" is no token id"},
           {"1.5\n", ":1: \"1.5\" is no token id"},
           {"99999999999999999999\n", "is no token id"},
           {"5 320\n", "sequence 0, token 1: id 320 is outside the vocabulary [0, 320)"},
           {"1\n-1\n", "sequence 1, token 0: id -1 is outside the vocabulary"}}) {
    InputOptions options;
    options.ids = folder.write("ids.txt", bad.text);
    EXPECT_THAT(input_error([&] { programs.make(options); }),
                AllOf(HasSubstr("ids.txt"), HasSubstr(bad.says)));
  }
  InputOptions options;
  options.ids = folder.path() / "none.txt";
  EXPECT_THAT(input_error([&] { programs.make(options); }), HasSubstr("none.txt"));
}

// gpt2 has 40 learned positions here; a rotary model has no such end.
TEST(Inputs, BeyondTheLearnedPositions) {
  const Programs gpt2("tiny-gpt2", {2});
  EXPECT_EQ(gpt2.make(tokens(40))[0].size(), 40u);
  EXPECT_THAT(input_error([&] { gpt2.make(tokens(41)); }),
              AllOf(HasSubstr("41 tokens"), HasSubstr("40 learned positions")));
  const Programs llama("tiny-llama", {2});
  EXPECT_EQ(llama.make(tokens(300))[0].size(), 300u);
}

// ---- steps ----

const Sequences kThree{{1, 2, 3, 4, 5}, {6}, {7, 8, 9}};

TEST(Inputs, WholePromptsAreOneStep) {
  const std::vector<Step> steps = prefill_steps(kThree, 0);
  ASSERT_EQ(steps.size(), 1u);
  EXPECT_EQ(steps[0].phase, Phase::prefill);
  EXPECT_THAT(steps[0].ids, ElementsAre(1, 2, 3, 4, 5, 6, 7, 8, 9));
  EXPECT_THAT(steps[0].sequences,
              ElementsAre(StepSequence{0, 0, 5}, StepSequence{1, 0, 1}, StepSequence{2, 0, 3}));
  EXPECT_THAT(steps[0].positions(), ElementsAre(0, 1, 2, 3, 4, 0, 0, 1, 2));
}

TEST(Inputs, ChunksOfEverySequence) {
  const std::vector<Step> steps = prefill_steps(kThree, 2);
  ASSERT_EQ(steps.size(), 3u);
  EXPECT_THAT(steps[0].ids, ElementsAre(1, 2, 6, 7, 8));
  EXPECT_THAT(steps[1].ids, ElementsAre(3, 4, 9));
  EXPECT_THAT(steps[1].sequences, ElementsAre(StepSequence{0, 2, 2}, StepSequence{2, 2, 1}));
  EXPECT_THAT(steps[2].ids, ElementsAre(5));
  for (int i = 0; i < 3; ++i) EXPECT_EQ(steps[static_cast<std::size_t>(i)].index, i);
}

// Each sequence prefills max(1, n - D), then takes its own next ids.
TEST(Inputs, DecodeTakesOneTokenOfEach) {
  InputOptions options;
  options.decode_steps = 3;
  const std::vector<Step> steps = decode_steps(kThree, options);
  ASSERT_EQ(steps.size(), 4u);
  EXPECT_EQ(steps[0].phase, Phase::prefill);
  EXPECT_THAT(steps[0].ids, ElementsAre(1, 2, 6, 7));
  EXPECT_EQ(steps[1].phase, Phase::decode);
  EXPECT_EQ(steps[1].index, 0);
  EXPECT_THAT(steps[1].ids, ElementsAre(3, 8));
  EXPECT_THAT(steps[1].sequences, ElementsAre(StepSequence{0, 2, 1}, StepSequence{2, 1, 1}));
  EXPECT_THAT(steps[2].ids, ElementsAre(4, 9));
  EXPECT_THAT(steps[3].ids, ElementsAre(5));
  EXPECT_EQ(steps[3].index, 2);
}

// Every token of every sequence is run once, whatever the chunk and the number of decode steps.
TEST(Inputs, EveryTokenIsRunOnceAndInOrder) {
  for (const std::int64_t chunk : {0, 1, 2, 3, 7}) {
    for (const std::int64_t decode : {1, 2, 8, 100}) {
      InputOptions options;
      options.chunk = chunk;
      options.decode_steps = decode;
      for (const std::vector<Step>& steps :
           {prefill_steps(kThree, chunk), decode_steps(kThree, options)}) {
        Sequences seen(kThree.size());
        for (const Step& step : steps) {
          std::size_t at = 0;
          for (const StepSequence& part : step.sequences) {
            auto& ids = seen[static_cast<std::size_t>(part.sequence)];
            EXPECT_EQ(part.first, static_cast<std::int64_t>(ids.size()));
            for (std::int64_t i = 0; i < part.count; ++i) ids.push_back(step.ids[at++]);
          }
          EXPECT_EQ(at, step.ids.size());
        }
        EXPECT_EQ(seen, kThree);
      }
    }
  }
}

TEST(Inputs, NothingLeftToDecode) {
  InputOptions options;
  EXPECT_THAT(input_error([&] { decode_steps({{4}}, options); }),
              HasSubstr("no sequence has a token left to decode"));
  EXPECT_THAT(input_error([&] { decode_steps({{4}, {5}}, options); }), HasSubstr("--tokens"));
  options.decode_steps = 0;
  EXPECT_THROW(decode_steps({{4, 5}}, options), InputError);
  options.decode_steps = 1;
  EXPECT_EQ(decode_steps({{4, 5}, {6}}, options).size(), 2u);
}

}  // namespace
}  // namespace shardcheck::testing
