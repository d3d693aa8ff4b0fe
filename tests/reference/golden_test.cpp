// SPDX-License-Identifier: Apache-2.0
// The reference against every shipped golden; and planted faults, each of which the same limit must catch.
#include "harness/golden.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <memory>
#include <numeric>
#include <optional>
#include <set>

#include "model/error.hpp"
#include "model/model.hpp"
#include "model/shipped.hpp"
#include "reference/blocks.hpp"
#include "reference/transformer.hpp"

namespace shardcheck {
namespace {

const std::filesystem::path kModels = std::filesystem::path(SHARDCHECK_SOURCE_DIR) /
                                      "fixtures/models";

std::filesystem::path golden_file(const std::string& name) {
  return kModels / name / "golden.safetensors";
}
Model shipped(const std::string& name) { return load_model((kModels / name).string()); }

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

TEST(ShippedGoldens, AreSixModels) { EXPECT_EQ(shipped_models().size(), 6u); }

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

// --- Planted faults ---

using Rows = std::vector<std::vector<double>>;

// A model's weights with some tensors changed; with none where `change` is empty.
class ChangedWeights : public WeightSource {
 public:
  using Change = std::function<void(const std::string& tensor, Rows& rows)>;
  ChangedWeights(Model model, Change change)
      : model_(std::move(model)), change_(std::move(change)) {}

  std::optional<std::vector<std::int64_t>> shape(std::string_view tensor) const override {
    const auto [rows, cols] = model_.extents(tensor);
    return cols == 1 ? std::vector{rows} : std::vector{rows, cols};
  }
  DType dtype(std::string_view tensor) const override { return model_.dtype(tensor); }
  void read_rows(std::string_view tensor, std::int64_t begin, std::int64_t end,
                 std::span<double> out) const override {
    if (!change_) return model_.read_rows(tensor, begin, end, out);
    const auto [row_count, cols] = model_.extents(tensor);
    std::vector<double> flat(static_cast<std::size_t>(row_count * cols));
    model_.read_rows(tensor, 0, row_count, std::span<double>(flat));
    Rows rows;
    for (std::int64_t r = 0; r < row_count; ++r) {
      rows.emplace_back(flat.begin() + r * cols, flat.begin() + (r + 1) * cols);
    }
    change_(std::string(tensor), rows);
    auto next = out.begin();
    for (std::int64_t r = begin; r < end; ++r) {
      next = std::copy(rows[static_cast<std::size_t>(r)].begin(),
                       rows[static_cast<std::size_t>(r)].end(), next);
    }
  }
  void read_rows(std::string_view, std::int64_t, std::int64_t, std::span<float>) const override {
    throw std::logic_error("the truth is computed in f64");
  }

 private:
  Model model_;
  Change change_;
};

// The report of a model whose config or weights are changed, against the golden of the right one.
GoldenReport with_fault(const std::string& name, const std::function<void(Config&)>& change_config,
                        const ChangedWeights::Change& change_weights) {
  Model right = shipped(name);
  Config config = right.config();
  change_config(config);
  const Model wrong(config, std::make_unique<ChangedWeights>(std::move(right), change_weights));
  return compare_golden(wrong, golden_file(name));
}

void keep_config(Config&) {}
const ChangedWeights::Change kKeepWeights;

// The first failing row is where the fault is, not only somewhere after it.
std::string first_failure(const GoldenReport& report) {
  const auto row = std::find_if(report.rows.begin(), report.rows.end(),
                                [](const GoldenRow& r) { return !r.passed(); });
  return row == report.rows.end() ? "none" : row->phase + "/" + row->tap;
}

TEST(PlantedFault, NoneWithoutOne) {
  EXPECT_EQ(first_failure(with_fault("tiny-llama", keep_config, kKeepWeights)), "none");
}

TEST(PlantedFault, WrongEpsilon) {
  for (const std::string name : {"tiny-llama", "tiny-qwen2", "tiny-mistral"}) {
    const GoldenReport report = with_fault(
        name, [](Config& c) { c.norm_eps *= 1.0 + 1e-6; }, kKeepWeights);
    EXPECT_EQ(first_failure(report), "prefill/layers.0.input_layernorm") << name;
  }
  const GoldenReport report = with_fault(
      "tiny-gpt2", [](Config& c) { c.norm_eps *= 1.0 + 1e-6; }, kKeepWeights);
  EXPECT_EQ(first_failure(report), "prefill/h.0.ln_1");
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

TEST(PlantedFault, WindowOffByOne) {
  for (const std::int64_t window : {3, 5}) {
    const GoldenReport report = with_fault(
        "tiny-mistral", [&](Config& c) { c.windows.assign(c.windows.size(), window); }, kKeepWeights);
    EXPECT_EQ(first_failure(report), "prefill/layers.0.self_attn.o_proj") << window;
  }
}

TEST(PlantedFault, WrongRopeParameters) {
  const auto fails = [](const std::string& name, const std::function<void(Config&)>& change) {
    return first_failure(with_fault(name, change, kKeepWeights)) ==
           "prefill/layers.0.self_attn.o_proj";
  };
  EXPECT_TRUE(fails("tiny-llama", [](Config& c) { c.rope.theta = 10001.0; }));
  EXPECT_TRUE(fails("tiny-odd-vocab", [](Config& c) { c.rope.type = RopeConfig::Type::standard; }));
  EXPECT_TRUE(fails("tiny-llama-bias", [](Config& c) { c.rope.type = RopeConfig::Type::standard; }));
  EXPECT_TRUE(fails("tiny-llama-bias", [](Config& c) { c.rope.low_freq_factor = 1.01; }));
  EXPECT_TRUE(fails("tiny-llama-bias", [](Config& c) { c.rope.high_freq_factor = 4.01; }));
  EXPECT_TRUE(fails("tiny-llama-bias", [](Config& c) { c.rope.original_max_positions = 65.0; }));
}

// In the attention of layer 0, decode steps turn q by one position too many; everything before is right.
TEST(PlantedFault, RopePositionOffByOneInDecode) {
  const Model model = shipped("tiny-llama");
  const Config& config = model.config();
  const std::vector<double> frequencies = reference::rope_frequencies(config.rope, config.head_dim);
  const std::vector<std::int64_t> kv_heads{0, 0, 1, 1, 2, 2, 3, 3};
  reference::Transformer<double> transformer(model);
  reference::Matrix<double> q, k, v;
  const auto forward = [&](std::int64_t offset) {
    transformer.reset();
    return [&, offset](std::span<const std::int64_t> ids, const reference::Tap<double>& tap) {
      const std::int64_t position = transformer.length();
      transformer.forward(ids, [&](std::string_view name, const reference::Matrix<double>& value) {
        if (name == "layers.0.self_attn.q_proj") q = value;
        if (name == "layers.0.self_attn.k_cache") k = value;
        if (name == "layers.0.self_attn.v_cache") v = value;
        if (name != "layers.0.self_attn.o_proj" || ids.size() > 1) return tap(name, value);
        const std::vector<std::int64_t> turned{position + offset}, at{position};
        std::vector<std::int64_t> keys(static_cast<std::size_t>(position + 1));
        std::iota(keys.begin(), keys.end(), 0);
        const reference::Matrix<double> attended = reference::attention<double>(
            reference::rope<double>(q, turned, frequencies), k, v, kv_heads, at, keys,
            1.0 / std::sqrt(static_cast<double>(config.head_dim)), 0);
        tap(name, reference::linear<double>(
                      attended, config.hidden_size,
                      [&](std::int64_t begin, std::int64_t end, std::span<double> out) {
                        model.read_rows("layers.0.self_attn.o_proj.weight", begin, end, out);
                      },
                      {}));
      });
    };
  };
  const Golden golden = read_golden(config, golden_file("tiny-llama"));
  EXPECT_EQ(first_failure(compare_golden(golden, golden_limit(config), forward(0))), "none");
  EXPECT_EQ(first_failure(compare_golden(golden, golden_limit(config), forward(1))),
            "decode0/layers.0.self_attn.o_proj");
}

TEST(PlantedFault, KeyHeadsExchanged) {
  const GoldenReport report = with_fault(
      "tiny-llama", keep_config, [](const std::string& tensor, Rows& rows) {
        if (tensor == "layers.1.self_attn.k_proj.weight")
          std::swap_ranges(rows.begin(), rows.begin() + 8, rows.begin() + 8);
      });
  EXPECT_EQ(first_failure(report), "prefill/layers.1.self_attn.k_proj");
}

// q head h attends with the kv head of another group, while every projection is right.
TEST(PlantedFault, QueryHeadsReadTheWrongKeyHead) {
  Model model = shipped("tiny-odd-vocab");
  const Config config = model.config();
  const std::int64_t d = config.head_dim;
  const Golden golden = read_golden(config, golden_file("tiny-odd-vocab"));
  // Head h reads kv head h mod 3 instead of h / 3: reorder q's rows and o's columns by head, undo it in q_proj's tap.
  const auto source = [](std::int64_t h) { return h % 3 * 3 + h / 3; };
  const Model wrong(config, std::make_unique<ChangedWeights>(
                                std::move(model), [&](const std::string& tensor, Rows& rows) {
                                  const Rows old = rows;
                                  for (std::int64_t h = 0; h < 9; ++h) {
                                    for (std::int64_t i = 0; i < d; ++i) {
                                      const auto to = static_cast<std::size_t>(h * d + i);
                                      const auto from = static_cast<std::size_t>(source(h) * d + i);
                                      if (tensor == "layers.0.self_attn.q_proj.weight")
                                        rows[to] = old[from];
                                      if (tensor != "layers.0.self_attn.o_proj.weight") continue;
                                      for (std::size_t r = 0; r < rows.size(); ++r)
                                        rows[r][to] = old[r][from];
                                    }
                                  }
                                }));
  reference::Transformer<double> transformer(wrong);
  const GoldenReport report = compare_golden(
      golden, golden_limit(config),
      [&](std::span<const std::int64_t> ids, const reference::Tap<double>& tap) {
        transformer.forward(ids, [&](std::string_view name, const reference::Matrix<double>& value) {
          if (name != "layers.0.self_attn.q_proj") return tap(name, value);
          reference::Matrix<double> in_order(value.rows(), value.cols());
          for (std::int64_t m = 0; m < value.rows(); ++m) {
            for (std::int64_t c = 0; c < value.cols(); ++c)
              in_order(m, source(c / d) * d + c % d) = value(m, c);
          }
          tap(name, in_order);
        });
      });
  EXPECT_EQ(first_failure(report), "prefill/layers.0.self_attn.o_proj");
}

// Rows of q and k in the order of interleaved rotation, as GGUF keeps them, read as if they were Hugging Face's.
TEST(PlantedFault, OtherRopeConvention) {
  const GoldenReport report = with_fault(
      "tiny-llama", keep_config, [](const std::string& tensor, Rows& rows) {
        if (!tensor.ends_with("q_proj.weight") && !tensor.ends_with("k_proj.weight")) return;
        const Rows old = rows;
        constexpr std::size_t d = 8;
        for (std::size_t r = 0; r < rows.size(); ++r)
          rows[r] = old[r / d * d + r % 2 * d / 2 + r % d / 2];
      });
  EXPECT_EQ(first_failure(report), "prefill/layers.0.self_attn.q_proj");
}

TEST(PlantedFault, PositionsShiftedByOne) {
  const GoldenReport report = with_fault(
      "tiny-gpt2", keep_config, [](const std::string& tensor, Rows& rows) {
        if (tensor == "wpe.weight") std::rotate(rows.begin(), rows.begin() + 1, rows.end());
      });
  EXPECT_EQ(first_failure(report), "prefill/wpe");
}

TEST(PlantedFault, BiasLeftOut) {
  const GoldenReport report = with_fault("tiny-qwen2", keep_config,
                                         [](const std::string& tensor, Rows& rows) {
                                           if (tensor == "layers.1.self_attn.v_proj.bias")
                                             rows[3][0] = 0.0;
                                         });
  EXPECT_EQ(first_failure(report), "prefill/layers.1.self_attn.v_proj");
}

TEST(PlantedFault, OneBitOfOneWeight) {
  const GoldenReport report = with_fault(
      "tiny-gpt2", keep_config, [](const std::string& tensor, Rows& rows) {
        if (tensor != "h.1.mlp.c_fc.weight") return;
        rows[7][5] = std::nextafter(static_cast<float>(rows[7][5]), 2.0f);
      });
  EXPECT_EQ(first_failure(report), "prefill/h.1.mlp.c_fc");
}

TEST(PlantedFault, NotANumberFailsAndIsTheWorst) {
  const Model model = shipped("tiny-llama");
  const Golden golden = read_golden(model.config(), golden_file("tiny-llama"));
  reference::Transformer<double> transformer(model);
  const GoldenReport report = compare_golden(
      golden, golden_limit(model.config()),
      [&](std::span<const std::int64_t> ids, const reference::Tap<double>& tap) {
        transformer.forward(ids, [&](std::string_view name, const reference::Matrix<double>& value) {
          reference::Matrix<double> changed = value;
          if (name == "layers.2.mlp") changed(0, 1) = std::numeric_limits<double>::quiet_NaN();
          if (name == "norm") changed(0, 1) = 1e300;
          tap(name, changed);
        });
      });
  EXPECT_FALSE(report.passed());
  EXPECT_EQ(report.rows[report.worst].tap, "layers.2.mlp");
  EXPECT_NE(golden_json(report).find("\"rel\": \"nan\""), std::string::npos) << golden_json(report);
  EXPECT_NE(golden_json(report).find("\"verdict\": \"failed\""), std::string::npos);
}

}  // namespace
}  // namespace shardcheck
