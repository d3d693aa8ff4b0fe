// SPDX-License-Identifier: Apache-2.0
// Planted faults in the reference: the limit of the goldens catches each, at the tensor where it is.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <limits>
#include <map>
#include <numeric>

#include "reference/blocks.hpp"
#include "reference/transformer.hpp"
#include "tests/reference/golden_fault.hpp"

namespace shardcheck {
namespace {

TEST(PlantedFault, NoneWithoutOne) {
  EXPECT_EQ(first_failure(with_fault("tiny-llama", keep_config, kKeepWeights)), "none");
}

TEST(PlantedFault, WrongEpsilon) {
  for (const std::string name : {"tiny-llama", "tiny-qwen2", "tiny-mistral"}) {
    const GoldenReport report = with_fault(
        name, [](Config& c) { c.norm_eps *= 1.0 + 1e-6; }, kKeepWeights);
    EXPECT_EQ(first_failure(report), "prefill/layers.0.input_layernorm") << name;
  }
  const std::map<std::string, std::string> others{{"tiny-gpt2", "h.0.ln_1"},
                                                  {"tiny-qwen3", "layers.0.input_layernorm"},
                                                  {"tiny-olmo2", "layers.0.self_attn.q_norm"},
                                                  {"tiny-phi3", "layers.0.input_layernorm"}};
  for (const auto& [name, tap] : others) {
    const GoldenReport report = with_fault(
        name, [](Config& c) { c.norm_eps *= 1.0 + 1e-6; }, kKeepWeights);
    EXPECT_EQ(first_failure(report), "prefill/" + tap) << name;
  }
}

// A norm of the other family: over the whole row instead of each head, or over each head instead of the row.
TEST(PlantedFault, QueryNormOverOtherFeatures) {
  for (const bool one_head : {true, false}) {
    const std::string name = one_head ? "tiny-qwen3" : "tiny-olmo2",
                      at = "layers.1.self_attn.q_norm";
    const Model model = shipped(name);
    const Config& config = model.config();
    std::vector<double> weight(static_cast<std::size_t>(model.extents(at + ".weight").rows));
    model.read_rows(at + ".weight", 0, static_cast<std::int64_t>(weight.size()),
                    std::span<double>(weight));
    const auto d = static_cast<std::size_t>(config.head_dim);
    std::vector<double> spread(static_cast<std::size_t>(config.q_size()));  // one weight per feature of the row
    for (std::size_t i = 0; i < spread.size(); ++i) spread[i] = weight[one_head ? i % d : i];
    reference::Transformer<double> transformer(model);
    reference::Matrix<double> q;
    const GoldenReport report = compare_golden(
        read_golden(config, golden_file(name)), golden_limit(config),
        [&](std::span<const std::int64_t> ids, const reference::Tap<double>& tap) {
          transformer.forward(ids, [&](std::string_view tapped, const reference::Matrix<double>& value) {
            if (tapped == "layers.1.self_attn.q_proj") q = value;
            if (tapped != at) return tap(tapped, value);
            if (one_head)
              return tap(tapped, reference::rms_norm<double>(q, spread, config.norm_eps));
            const std::vector<double> ones(d, 1.0);
            reference::Matrix<double> wrong = reference::head_norm<double>(q, ones, config.norm_eps);
            for (std::int64_t m = 0; m < wrong.rows(); ++m) {
              for (std::int64_t i = 0; i < wrong.cols(); ++i)
                wrong(m, i) *= spread[static_cast<std::size_t>(i)];
            }
            tap(tapped, wrong);
          });
        });
    EXPECT_EQ(first_failure(report), "prefill/" + at);
  }
}

// gate | up and q | k | v in another order, with every projection right: what was reported is put back in place.
TEST(PlantedFault, SectionsOfAFusedProjectionExchanged) {
  Model model = shipped("tiny-phi3");
  const Config config = model.config();
  const std::int64_t inner = config.intermediate_size;
  const Model wrong(
      config,
      std::make_unique<ChangedWeights>(std::move(model), [&](const std::string& tensor, Rows& rows) {
        if (tensor != "layers.1.mlp.gate_up_proj.weight") return;
        std::swap_ranges(rows.begin(), rows.begin() + inner, rows.begin() + inner);
      }));
  reference::Transformer<double> transformer(wrong);
  const GoldenReport report = compare_golden(
      read_golden(config, golden_file("tiny-phi3")), golden_limit(config),
      [&](std::span<const std::int64_t> ids, const reference::Tap<double>& tap) {
        transformer.forward(ids, [&](std::string_view name, const reference::Matrix<double>& value) {
          if (name != "layers.1.mlp.gate_up_proj") return tap(name, value);
          reference::Matrix<double> in_order(value.rows(), value.cols());
          for (std::int64_t m = 0; m < value.rows(); ++m) {
            for (std::int64_t c = 0; c < value.cols(); ++c)
              in_order(m, (c + inner) % (2 * inner)) = value(m, c);
          }
          tap(name, in_order);
        });
      });
  EXPECT_EQ(first_failure(report), "prefill/layers.1.mlp.activation_fn");
}

TEST(PlantedFault, WindowOffByOne) {
  for (const std::int64_t window : {3, 5}) {
    const GoldenReport report = with_fault(
        "tiny-mistral", [&](Config& c) { c.windows.assign(c.windows.size(), window); }, kKeepWeights);
    EXPECT_EQ(first_failure(report), "prefill/layers.0.self_attn.o_proj") << window;
  }
  for (const std::int64_t window : {4, 6}) {
    const GoldenReport report = with_fault(
        "tiny-phi3", [&](Config& c) { c.windows.back() = window; }, kKeepWeights);
    EXPECT_EQ(first_failure(report), "prefill/layers.2.self_attn.o_proj") << window;
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
