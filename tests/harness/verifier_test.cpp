// SPDX-License-Identifier: Apache-2.0
// A process that hands in its own tensors: judged as the folder is that holds the same ones, and told what it did wrong.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <thread>

#include "harness/matcher.hpp"
#include "harness/verifier.hpp"
#include "model/error.hpp"
#include "tests/harness/candidate_folder.hpp"

namespace shardcheck::testing {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

std::string placement_word(const Placement& placement) {
  return placement.is_partial() ? "P(sum)" : to_string(placement);
}

VerifierOptions options_of(const RanProgram& ran) {
  return {ran.taps.mesh, ran.taps.storage, ran.taps.wire, ran.taps.reduction, ran.sequences};
}

/// Says what a run's program says of its values.
void state(Verifier& verifier, const RanProgram& ran) {
  for (const StepTaps& step : ran.taps.steps) verifier.step(step.step.phase, step.step.sequences);
  for (const TapValue& value : ran.taps.steps.front().values) {
    std::map<std::string, std::string> axes;
    for (std::size_t axis = 0; axis < value.layout.placements.size(); ++axis)
      axes[ran.taps.mesh.axes[axis].name] = placement_word(value.layout.placements[axis]);
    verifier.place(value.name, axes,
                   value.layout.owned.empty() ? std::nullopt : std::optional(value.layout.owned));
  }
}

/// Hands in all of it, each rank from a thread of its own; `change` may alter a value or drop it (false).
template <typename Change>
void hand_in(Verifier& verifier, const RanProgram& ran, Change change) {
  std::vector<std::thread> ranks;
  for (int rank = 0; rank < ran.taps.mesh.ranks(); ++rank) {
    ranks.emplace_back([&, rank] {
      for (std::size_t s = 0; s < ran.taps.steps.size(); ++s) {
        for (const TapValue& value : ran.taps.steps[s].values) {
          HostTensor part = value.ranks[static_cast<std::size_t>(rank)];
          if (change(value.name, rank, part))
            verifier.tap("model." + value.name, rank, part, static_cast<int>(s));
        }
      }
    });
  }
  for (std::thread& rank : ranks) rank.join();
}

bool as_it_is(const std::string&, int, HostTensor&) { return true; }

TEST(Verifier, JudgesAsTheFolderWithTheSameTensors) {
  for (const Phase phase : {Phase::prefill, Phase::decode}) {
    const CandidateFolder folder(run_in(DType::bf16, 3, phase));
    const RanProgram& ran = folder.ran();
    Verifier verifier(folder.model(), options_of(ran));
    state(verifier, ran);
    hand_in(verifier, ran, as_it_is);
    const CandidateReport own = verifier.report();
    const CandidateReport read = compare_candidate(
        folder.model(), read_candidate(folder.model(), ran.parts.ops, folder.path()), ran.parts);
    EXPECT_THAT(own, passes());
    EXPECT_EQ(candidate_json(own), candidate_json(read));
    EXPECT_EQ(candidate_json(own), candidate_json(verifier.report())) << "a report changes nothing";
  }
}

TEST(Verifier, NamesTheRankWhoseNumbersAreWrong) {
  const CandidateFolder folder(run_in(DType::f32, 3));
  Verifier verifier(folder.model(), options_of(folder.ran()));
  state(verifier, folder.ran());
  hand_in(verifier, folder.ran(), [](const std::string& tap, int rank, HostTensor& part) {
    if (tap != "layers.1.mlp.up_proj" || rank != 1) return true;
    std::vector<double> numbers = part.to_f64();
    std::reverse(numbers.begin(), numbers.end());
    part = round_to(part.dtype(), part.shape(), numbers);
    return true;
  });
  const CandidateReport report = verifier.report();
  ASSERT_TRUE(report.first.has_value());
  EXPECT_EQ(report.first->tap, "layers.1.mlp.up_proj");
  EXPECT_EQ(report.first->ranks, std::vector<int>{1});
  EXPECT_THAT(report, Not(passes()));
}

TEST(Verifier, ARankWithoutItsPartFails) {
  const CandidateFolder folder(run_in(DType::f32, 3));
  Verifier verifier(folder.model(), options_of(folder.ran()));
  state(verifier, folder.ran());
  hand_in(verifier, folder.ran(), [](const std::string& tap, int rank, HostTensor&) {
    return tap != "layers.0.mlp.act" || rank != 2;
  });
  const CandidateReport report = verifier.report();
  ASSERT_TRUE(report.first.has_value());
  EXPECT_EQ(report.first->tap, "layers.0.mlp.act");
  EXPECT_THAT(candidate_table(report), HasSubstr("rank 2 has no such tensor"));
  EXPECT_FALSE(report.first->propagated.has_value()) << "all values that are there are right";
}

TEST(Verifier, TakesPlainNumbersOfTheDtypeAlone) {
  const Model model = load_model("tiny-llama");
  const auto hidden = static_cast<std::size_t>(model.config().hidden_size);
  Verifier verifier(model, {Mesh{{{"tp", 2}}}, DType::bf16, {}, {}, {{1, 2}}});
  std::vector<float> numbers(2 * hidden);
  for (std::size_t i = 0; i < numbers.size(); ++i) numbers[i] = 0.125f * static_cast<float>(i % 17);
  verifier.tap("layers.0.input_layernorm", 0, numbers);
  numbers[3] = 0.1f;
  const auto refused = [](auto call) {
    try {
      call();
    } catch (const InputError& error) {
      return std::string(error.what());
    }
    return std::string("nothing");
  };
  EXPECT_THAT(refused([&] { verifier.tap("norm", 0, numbers); }), HasSubstr("is no number of bf16"));
  EXPECT_THAT(refused([&] { verifier.tap("norm", 0, std::span<const float>(numbers).first(hidden + 1)); }),
              HasSubstr("are no rows of its"));
  numbers[3] = 0.5f;
  EXPECT_THAT(refused([&] { verifier.tap("layers.0.input_layernorm", 0, numbers); }),
              HasSubstr("has handed in its part of step 0 before"));
  EXPECT_THAT(refused([&] { verifier.tap("layers.0.mlp.gate_prj", 0, numbers); }),
              HasSubstr("did you mean \"layers.0.mlp.gate_proj\""));
  EXPECT_THAT(refused([&] { verifier.tap("norm", 2, numbers); }), HasSubstr("no rank 2 on tp=2"));
  EXPECT_THAT(refused([&] { verifier.tap("norm", 0, numbers, 1); }), HasSubstr("there is no step 1"));
  EXPECT_THAT(refused([&] { verifier.tap("norm", 0, HostTensor(DType::f32, {2, 1})); }),
              HasSubstr("storage of this run is bf16"));
}

TEST(Verifier, RefusesARunThatCannotBe) {
  const Model model = load_model("tiny-llama");
  const Mesh mesh{{{"tp", 2}}};
  EXPECT_THROW(Verifier(model, {mesh, DType::f32, {}, {}, {}}), InputError);
  EXPECT_THROW(Verifier(model, {mesh, DType::f32, {}, {}, {{model.config().vocab_size}}}), InputError);
  Verifier verifier(model, {mesh, DType::f32, {}, {}, {{1, 2, 3}}});
  EXPECT_THROW(verifier.report(), InputError) << "nothing was handed in";
  EXPECT_THROW(verifier.step(Phase::prefill, {{1, 0, 1}}), InputError) << "no such sequence";
  EXPECT_THROW(verifier.step(Phase::prefill, {{0, 0, 4}}), InputError) << "longer than its ids";
  verifier.step(Phase::prefill, {{0, 0, 2}});
  EXPECT_THROW(verifier.step(Phase::decode, {{0, 1, 1}}), InputError) << "goes on at 2";
  EXPECT_THROW(verifier.place("norm", {{"tp", "R"}}, std::vector<Ranges>{{{0, 4}}}), InputError);
}

}  // namespace
}  // namespace shardcheck::testing
