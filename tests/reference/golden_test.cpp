// SPDX-License-Identifier: Apache-2.0
// The reference against every shipped golden. golden_faults_test.cpp has the faults that the same limit must catch.
#include "harness/golden.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>

#include "model/shipped.hpp"
#include "tests/reference/golden_fault.hpp"

namespace shardcheck {
namespace {

std::vector<std::string> shipped_models() {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(kModels)) {
    if (std::filesystem::exists(entry.path() / "golden.safetensors"))
      names.push_back(entry.path().filename());
  }
  std::sort(names.begin(), names.end());
  return names;
}

class ShippedGolden : public testing::TestWithParam<std::string> {};

TEST_P(ShippedGolden, AgreesWithinTheLimit) {
  const Model model = shipped(GetParam());
  const GoldenReport report = compare_golden(model, golden_file(GetParam()));
  EXPECT_TRUE(report.passed()) << golden_table(report);
  EXPECT_EQ(report.limit, 1e-13);
  EXPECT_EQ(report.unknown, 0);
  EXPECT_EQ(report.compared, static_cast<std::int64_t>(report.rows.size()));
}

// A golden that leaves something out would let a fault there pass.
TEST_P(ShippedGolden, CoversEveryModuleInPrefillAndThreeDecodeSteps) {
  const Model model = shipped(GetParam());
  const Golden golden = read_golden(model.config(), golden_file(GetParam()));
  EXPECT_EQ(golden.decode_steps, 3);
  std::map<int, std::set<std::string>> taps;
  for (const GoldenTensor& tensor : golden.tensors) taps[tensor.call].insert(tensor.tap);
  ASSERT_EQ(taps.size(), 4u);
  for (const auto& [call, names] : taps) {
    for (const Module& module : model.modules())
      EXPECT_TRUE(names.contains(module.path)) << module.path;
    for (std::int64_t layer = 0; layer < model.config().num_layers; ++layer) {
      const BlockPaths paths = block_paths(model.config(), layer);
      EXPECT_TRUE(names.contains(paths.layer) && names.contains(paths.attention) &&
                  names.contains(paths.mlp));
    }
    EXPECT_EQ(names, taps[0]);
  }
}

INSTANTIATE_TEST_SUITE_P(Models, ShippedGolden, testing::ValuesIn(shipped_models()),
                         [](const auto& test) {
                           std::string name = test.param;
                           std::replace(name.begin(), name.end(), '-', '_');
                           return name;
                         });

TEST(ShippedGoldens, AreNineModels) { EXPECT_EQ(shipped_models().size(), 9u); }

// SmolLM2 is too large for git: its tests exist where fixtures/fetch has put it into the cache.
std::vector<std::string> fetched_models() {
  if (!std::filesystem::exists(cache_directory() / "SmolLM2-135M-Instruct.Q4_1.gguf")) return {};
  return {"smollm2"};
}

class FetchedGolden : public testing::TestWithParam<std::string> {
 protected:
  const std::filesystem::path file_ = std::filesystem::path(SHARDCHECK_SOURCE_DIR) /
                                      "fixtures/goldens" / (GetParam() + ".safetensors");
};
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(FetchedGolden);
INSTANTIATE_TEST_SUITE_P(Models, FetchedGolden, testing::ValuesIn(fetched_models()),
                         [](const auto& test) { return test.param; });

TEST_P(FetchedGolden, AgreesWithinTheLimit) {
  const GoldenReport report = compare_golden(load_model(GetParam()), file_);
  EXPECT_TRUE(report.passed()) << golden_table(report);
  EXPECT_EQ(report.limit, 1e-12);
  EXPECT_EQ(report.compared, 16);
}

TEST(GoldenLimit, FollowsDepthAndWidth) {
  Config config;
  config.num_layers = 30;
  config.hidden_size = 576;
  EXPECT_EQ(golden_limit(config), 1e-12);  // SmolLM2
  config.num_layers = 3;
  config.hidden_size = 48;
  EXPECT_EQ(golden_limit(config), 1e-13);
  config.num_layers = 1;
  config.hidden_size = 2;
  EXPECT_EQ(golden_limit(config), 1e-13);
}

// The file stores the f32 nearest to 1e-5. Whoever writes 1e-5 instead is off by 2.5e-8 of it.
TEST_P(FetchedGolden, NoticesAnEpsilonThatIsOnlyWrittenDifferently) {
  Model right = load_model(GetParam());
  Config config = right.config();
  ASSERT_EQ(config.norm_eps, static_cast<double>(1e-5f));
  config.norm_eps = 1e-5;
  const Model wrong(config, std::make_unique<ChangedWeights>(std::move(right), kKeepWeights));
  const GoldenReport report = compare_golden(wrong, file_);
  EXPECT_EQ(first_failure(report), "prefill/layers.0");
}

}  // namespace
}  // namespace shardcheck
