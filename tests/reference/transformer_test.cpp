// SPDX-License-Identifier: Apache-2.0
// The forward pass as a whole: steps, caches, names of taps, bad tokens.
#include "reference/transformer.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <map>

#include "harness/golden.hpp"
#include "model/error.hpp"
#include "model/model.hpp"

namespace shardcheck::reference {
namespace {

Model shipped(const std::string& name) {
  return load_model((std::filesystem::path(SHARDCHECK_SOURCE_DIR) / "fixtures/models" / name).string());
}

std::vector<std::int64_t> varied_ids(const Config& config, std::int64_t count) {
  std::vector<std::int64_t> ids;
  for (std::int64_t i = 0; i < count; ++i)
    ids.push_back((i * i * 31 + 7 * i + 5) % config.vocab_size);
  return ids;
}

template <typename T>
double relative_difference(const Matrix<double>& a, const Matrix<T>& b) {
  double difference = 0.0, size = 0.0;
  for (std::size_t i = 0; i < a.values().size(); ++i) {
    difference = std::max(difference, std::abs(a.values()[i] - static_cast<double>(b.values()[i])));
    size = std::max(size, std::abs(a.values()[i]));
  }
  return difference / size;
}

class EveryModel : public testing::TestWithParam<const char*> {};
INSTANTIATE_TEST_SUITE_P(Models, EveryModel,
                         testing::Values("tiny-llama", "tiny-llama-bias", "tiny-qwen2",
                                         "tiny-mistral", "tiny-gpt2", "tiny-odd-vocab",
                                         "tiny-qwen3", "tiny-olmo2", "tiny-phi3"),
                         [](const auto& test) {
                           std::string name = test.param;
                           std::replace(name.begin(), name.end(), '-', '_');
                           return name;
                         });

TEST_P(EveryModel, ReportsTheNamesOfTapNamesInOrderInPrefillAndDecode) {
  const Model model = shipped(GetParam());
  const std::vector<std::string> expected = tap_names(model.config());
  Transformer<double> transformer(model);
  for (const std::int64_t count : {6, 1}) {
    std::vector<std::string> names;
    transformer.forward(varied_ids(model.config(), count),
                        [&](std::string_view name, const Matrix<double>& value) {
                          names.emplace_back(name);
                          const bool cache = name.ends_with("_cache");
                          EXPECT_TRUE(cache || value.rows() == count) << name;
                        });
    EXPECT_EQ(names, expected);
  }
  std::vector<std::string> once = expected;
  std::sort(once.begin(), once.end());
  EXPECT_EQ(std::unique(once.begin(), once.end()), once.end()) << "two values share a name";
}

TEST_P(EveryModel, ChunksAndSingleTokensGiveWhatTheWholePromptGives) {
  const Model model = shipped(GetParam());
  const std::vector<std::int64_t> ids = varied_ids(model.config(), 17);
  Transformer<double> transformer(model);
  const Matrix<double> whole = transformer.forward(ids);
  for (const std::vector<std::size_t>& chunks :
       {std::vector<std::size_t>{5, 0, 1, 11}, {1, 1, 1, 14}, {16, 1}}) {
    transformer.reset();
    Matrix<double> joined(17, model.config().vocab_size);
    std::size_t done = 0;
    for (const std::size_t count : chunks) {
      const Matrix<double> part = transformer.forward(std::span(ids).subspan(done, count));
      std::copy(part.values().begin(), part.values().end(),
                joined.data() + done * static_cast<std::size_t>(joined.cols()));
      done += count;
      EXPECT_EQ(transformer.length(), static_cast<std::int64_t>(done));
    }
    EXPECT_LE(relative_difference(whole, joined), golden_limit(model.config()));
  }
  // The planted fault: a chunk that forgets what came before.
  transformer.reset();
  const Matrix<double> forgetful = transformer.forward(std::span(ids).subspan(16, 1));
  Matrix<double> last(1, whole.cols(), whole.row(16));
  EXPECT_GT(relative_difference(last, forgetful), golden_limit(model.config()));
}

TEST_P(EveryModel, IsBitwiseTheSameInEveryRun) {
  const Model model = shipped(GetParam());
  const std::vector<std::int64_t> ids = varied_ids(model.config(), 7);
  std::vector<double> first;
  for (std::size_t run = 0; run < 5; ++run) {
    const std::vector<double> shift(run * 3 + 1);  // moves the next allocations
    Transformer<double> transformer(model);
    const Matrix<double> logits = transformer.forward(ids);
    if (first.empty()) first.assign(logits.values().begin(), logits.values().end());
    EXPECT_TRUE(std::ranges::equal(first, logits.values()));
  }
}

TEST_P(EveryModel, AttentionReadsTheRowsThatItsWindowShows) {
  const Model model = shipped(GetParam());
  const Config& config = model.config();
  const bool gpt2 = config.family == Family::gpt2, phi3 = config.family == Family::phi3;
  const std::string keys = gpt2 ? ".c_attn.k" : ".k_rot";
  const std::string values = gpt2 ? ".c_attn.v" : phi3 ? ".qkv_proj.v" : ".v_proj";
  Transformer<double> transformer(model);
  std::map<std::string, std::vector<double>> written;  // every row so far
  std::int64_t length = 0;
  for (const std::int64_t count : {6, 1, 3, 1}) {
    transformer.forward(varied_ids(config, count), [&](std::string_view name,
                                                       const Matrix<double>& value) {
      for (std::int64_t layer = 0; layer < config.num_layers; ++layer) {
        const std::string path = block_paths(config, layer).attention;
        const std::int64_t window = config.windows[static_cast<std::size_t>(layer)].value_or(0);
        const std::int64_t first = window == 0 ? 0 : std::max<std::int64_t>(0, length - window + 1);
        for (const auto& [source, cache] : {std::pair(path + keys, path + ".k_cache"),
                                            std::pair(path + values, path + ".v_cache")}) {
          std::vector<double>& rows = written[cache];
          if (name == source) rows.insert(rows.end(), value.values().begin(), value.values().end());
          if (name != cache) continue;
          EXPECT_EQ(value.rows(), length + count - first) << cache;
          EXPECT_TRUE(std::equal(value.values().begin(), value.values().end(),
                                 rows.begin() + first * value.cols(), rows.end()))
              << cache;
        }
      }
    });
    length += count;
  }
}

TEST_P(EveryModel, SinglePrecisionIsTheSameModel) {
  const Model model = shipped(GetParam());
  const std::vector<std::int64_t> ids = varied_ids(model.config(), 9);
  const Matrix<double> truth = Transformer<double>(model).forward(ids);
  const Matrix<float> single = Transformer<float>(model).forward(ids);
  // The same derivation as the golden's limit, in units of f32's roundoff.
  const double limit = golden_limit(model.config()) * 0x1p-24 / 0x1p-53;
  EXPECT_LE(relative_difference(truth, single), limit);
}

template <typename Function>
std::string message_of(Function function) {
  try {
    function();
  } catch (const InputError& error) {
    return error.what();
  }
  return "no InputError";
}

TEST(Transformer, RefusesIdsOutsideTheVocabularyAndKeepsItsState) {
  const Model model = shipped("tiny-odd-vocab");
  Transformer<double> transformer(model);
  transformer.forward(std::vector<std::int64_t>{1, 256});
  for (const std::int64_t id : {257, -1}) {
    const std::string message = message_of([&] {
      transformer.forward(std::vector<std::int64_t>{3, id});
    });
    EXPECT_NE(message.find(std::to_string(id)), std::string::npos) << message;
    EXPECT_NE(message.find("position 3"), std::string::npos) << message;
    EXPECT_NE(message.find("256"), std::string::npos) << message;
  }
  EXPECT_EQ(transformer.length(), 2);
}

TEST(Transformer, RefusesPositionsBeyondTheLearnedOnes) {
  const Model model = shipped("tiny-gpt2");
  Transformer<double> transformer(model);
  transformer.forward(std::vector<std::int64_t>(40, 7));  // the last position there is
  const std::string message = message_of([&] { transformer.forward(std::vector<std::int64_t>{9}); });
  EXPECT_NE(message.find("token id 9 stands at position 40"), std::string::npos) << message;
  EXPECT_NE(message.find("at most 40"), std::string::npos) << message;
  const Model rotary = shipped("tiny-mistral");  // max_position_embeddings is no limit of a rotary model
  EXPECT_EQ(Transformer<double>(rotary).forward(std::vector<std::int64_t>(300, 7)).rows(), 300);
}

TEST(Transformer, ATapThatThrowsLeavesTheSequenceAsItWas) {
  const Model model = shipped("tiny-llama");
  const std::vector<std::int64_t> ids = varied_ids(model.config(), 8);
  Transformer<double> whole(model), interrupted(model);
  const Matrix<double> expected = whole.forward(ids);
  interrupted.forward(std::span(ids).first(5));
  EXPECT_THROW(interrupted.forward(ids,
                                   [](std::string_view name, const Matrix<double>&) {
                                     if (name == "layers.1.mlp") throw std::runtime_error("stop");
                                   }),
               std::runtime_error);
  EXPECT_EQ(interrupted.length(), 5);
  const Matrix<double> rest = interrupted.forward(std::span(ids).subspan(5));
  EXPECT_LE(relative_difference(Matrix<double>(1, rest.cols(), expected.row(7)),
                                Matrix<double>(1, rest.cols(), rest.row(2))),
            golden_limit(model.config()));
}

}  // namespace
}  // namespace shardcheck::reference
