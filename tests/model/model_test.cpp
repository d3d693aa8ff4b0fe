// SPDX-License-Identifier: Apache-2.0
#include "model/model.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <limits>
#include <map>
#include <thread>
#include <utility>

#include "input_error.hpp"
#include "model/host_tensor.hpp"
#include "model/philox.hpp"
#include "model/safetensors.hpp"
#include "model/shipped.hpp"
#include "temp_folder.hpp"

namespace shardcheck {
namespace {

using testing::HasSubstr;
using Tensors = std::map<std::string, HostTensor>;

constexpr std::string_view kLlama = R"({"model_type": "llama", "hidden_size": 12, "intermediate_size": 20,
  "num_hidden_layers": 2, "num_attention_heads": 3, "num_key_value_heads": 1,
  "vocab_size": 17, "attention_bias": true})";

constexpr std::string_view kGpt2 = R"({"model_type": "gpt2", "n_embd": 6, "n_inner": 70, "n_layer": 1, "n_head": 2,
  "vocab_size": 11, "n_positions": 5})";

/// Every tensor of a config as a file has it (gpt2's linears transposed), in `dtype`, under `prefix`.
Tensors file_tensors(std::string_view config_text, DType dtype, const std::string& prefix) {
  Tensors tensors;
  for (const Module& module : modules(parse_config(config_text, "c.json"))) {
    const auto add = [&](const std::string& name, const std::vector<std::int64_t>& shape,
                         std::int64_t elements) {
      std::vector<double> values(static_cast<std::size_t>(elements));
      fill_normal(1, name, 0, values);
      tensors[module.path == "lm_head" ? name : prefix + name] = round_to(dtype, shape, values);
    };
    if (module.kind == ModuleKind::norm) {
      add(module.weight(), {module.out}, module.out);
    } else if (!module.tied_to) {
      const bool swapped = module.stored_transposed;
      add(module.weight(), {swapped ? module.in : module.out, swapped ? module.out : module.in},
          module.out * module.in);
    }
    if (module.has_bias) add(module.bias(), {module.out}, module.out);
  }
  return tensors;
}

void write_model(const TempFolder& folder, std::string_view config, const Tensors& tensors) {
  folder.write("config.json", config);
  const std::vector<std::pair<std::string, HostTensor>> list(tensors.begin(), tensors.end());
  std::filesystem::remove(folder.path() / "model.safetensors");
  write_safetensors(folder.path() / "model.safetensors", list);
}

template <typename T>
std::vector<T> read(const Model& model, const std::string& tensor, std::int64_t begin,
                    std::int64_t end) {
  std::vector<T> values(static_cast<std::size_t>((end - begin) * model.extents(tensor).cols));
  model.read_rows(tensor, begin, end, std::span<T>(values));
  return values;
}

template <typename T>
std::vector<T> read(const Model& model, const std::string& tensor) {
  return read<T>(model, tensor, 0, model.extents(tensor).rows);
}

TEST(Model, ReadsSafetensorsInEveryDtypeWithAndWithoutPrefix) {
  for (const DType dtype : {DType::f64, DType::f32, DType::f16, DType::bf16}) {
    for (const std::string prefix : {"", "model."}) {
      const TempFolder folder;
      const Tensors tensors = file_tensors(kLlama, dtype, prefix);
      write_model(folder, kLlama, tensors);
      const Model model = load_model(folder.path().string());
      for (const auto& [stored, tensor] : tensors) {
        const std::string name(strip_prefix(stored));
        EXPECT_EQ(read<double>(model, name), tensor.to_f64()) << stored;
        EXPECT_EQ(read<double>(model, "model." + name), tensor.to_f64());
        EXPECT_EQ(model.dtype(name), dtype);
        const std::vector<float> narrow = read<float>(model, name);
        for (std::size_t i = 0; i < narrow.size(); ++i) {
          EXPECT_EQ(narrow[i], static_cast<float>(tensor.at(static_cast<std::int64_t>(i))));
        }
      }
      EXPECT_EQ(load_model((folder.path() / "config.json").string()).config().hidden_size, 12);
    }
  }
}

TEST(Model, Gpt2IsHandedOutUntransposed) {
  const TempFolder folder;
  Tensors tensors = file_tensors(kGpt2, DType::f32, "transformer.");
  // Masks that older checkpoints hold.
  tensors["transformer.h.0.attn.bias"] = HostTensor(DType::f32, {1, 1, 5, 5});
  tensors["transformer.h.0.attn.masked_bias"] = HostTensor(DType::f32, {});
  write_model(folder, kGpt2, tensors);
  const Model model = load_model(folder.path().string());
  for (const std::string path :
       {"h.0.attn.c_attn", "h.0.attn.c_proj", "h.0.mlp.c_fc", "h.0.mlp.c_proj"}) {
    const HostTensor& stored = tensors.at("transformer." + path + ".weight");
    const auto [rows, cols] = model.extents(path + ".weight");
    ASSERT_EQ(stored.shape(), (std::vector<std::int64_t>{cols, rows}));
    for (const auto& [begin, end] : std::vector<std::pair<std::int64_t, std::int64_t>>{
             {0, rows}, {1, rows - 1}, {2, 2}, {3, 4}}) {
      const std::vector<double> block = read<double>(model, path + ".weight", begin, end);
      for (std::int64_t row = begin; row < end; ++row) {
        for (std::int64_t col = 0; col < cols; ++col) {
          EXPECT_EQ(block[static_cast<std::size_t>((row - begin) * cols + col)],
                    stored.at(col * rows + row));
        }
      }
    }
  }
  EXPECT_EQ(read<double>(model, "wpe.weight"), tensors.at("transformer.wpe.weight").to_f64());
  EXPECT_EQ(model.storage_name("lm_head.weight"), "wte.weight");
  EXPECT_EQ(read<double>(model, "lm_head.weight"), tensors.at("transformer.wte.weight").to_f64());
}

TEST(Model, RefusesWeightsThatDoNotFitTheConfig) {
  const TempFolder folder;
  const Tensors good = file_tensors(kLlama, DType::f32, "model.");
  const auto error = [&](const Tensors& tensors) {
    write_model(folder, kLlama, tensors);
    return input_error([&] { load_model(folder.path().string()); });
  };
  Tensors missing = good;
  missing.erase("model.layers.1.self_attn.k_proj.bias");
  EXPECT_THAT(error(missing), HasSubstr("layers.1.self_attn.k_proj.bias"));
  Tensors misshapen = good;
  misshapen["model.layers.0.mlp.up_proj.weight"] = HostTensor(DType::f32, {12, 20});
  const std::string message = error(misshapen);
  EXPECT_THAT(message, HasSubstr("layers.0.mlp.up_proj.weight"));
  EXPECT_THAT(message, HasSubstr("[12, 20]"));
  EXPECT_THAT(message, HasSubstr("[20, 12]"));
  Tensors extra = good;
  extra["model.layers.0.self_attn.q_norm.weight"] = HostTensor(DType::f32, {4});
  EXPECT_THAT(error(extra), HasSubstr("q_norm"));
  Tensors twice = good;
  twice["norm.weight"] = good.at("model.norm.weight");
  EXPECT_THAT(error(twice), HasSubstr("twice"));
  Tensors integers = good;
  integers["model.norm.weight"] = HostTensor(DType::i64, {12});
  EXPECT_THAT(error(integers), HasSubstr("I64"));
  Tensors buffer = good;
  buffer["model.layers.0.self_attn.rotary_emb.inv_freq"] = HostTensor(DType::f32, {2});
  write_model(folder, kLlama, buffer);
  EXPECT_NO_THROW(load_model(folder.path().string()));
}

TEST(Model, ATiedCopyMustBeACopy) {
  const TempFolder folder;
  const std::string tied = std::string(kLlama.substr(0, kLlama.size() - 1)) +
                           ", \"tie_word_embeddings\": true}";
  Tensors tensors = file_tensors(tied, DType::bf16, "model.");
  tensors["lm_head.weight"] = tensors.at("model.embed_tokens.weight");
  write_model(folder, tied, tensors);
  EXPECT_EQ(load_model(folder.path().string()).storage_name("lm_head.weight"),
            "embed_tokens.weight");
  std::vector<double> changed = tensors.at("lm_head.weight").to_f64();
  changed[200] = -changed[200];
  tensors["lm_head.weight"] = round_to(DType::bf16, {17, 12}, changed);
  write_model(folder, tied, tensors);
  EXPECT_THAT(input_error([&] { load_model(folder.path().string()); }),
              HasSubstr("tie_word_embeddings"));
}

TEST(Model, NamesTheFirstNonFiniteWeight) {
  for (const double poison : {std::nan(""), HUGE_VAL, -HUGE_VAL}) {
    for (const DType dtype : {DType::f64, DType::f32, DType::f16, DType::bf16}) {
      const TempFolder folder;
      Tensors tensors = file_tensors(kLlama, dtype, "");
      std::vector<double> values = tensors.at("layers.1.mlp.down_proj.weight").to_f64();
      values[7 * 20 + 13] = poison;
      tensors["layers.1.mlp.down_proj.weight"] = round_to(dtype, {12, 20}, values);
      write_model(folder, kLlama, tensors);
      const Model model = load_model(folder.path().string());
      EXPECT_NO_THROW(read<double>(model, "layers.1.mlp.down_proj.weight", 0, 7));
      for (const std::string& message :
           {input_error([&] { read<double>(model, "layers.1.mlp.down_proj.weight", 2, 12); }),
            input_error([&] { read<float>(model, "layers.1.mlp.down_proj.weight", 7, 8); })}) {
        EXPECT_THAT(message, HasSubstr("layers.1.mlp.down_proj.weight"));
        EXPECT_THAT(message, HasSubstr("[7, 13]"));
      }
    }
  }
}

TEST(Model, NamesTheNearestModule) {
  const Model model(parse_config(kLlama, "c.json"), nullptr);
  EXPECT_FALSE(model.has_weights());
  EXPECT_EQ(model.module("model.layers.1.mlp.up_proj").path, "layers.1.mlp.up_proj");
  EXPECT_THAT(input_error([&] { model.module("layers.1.mlp.upproj"); }),
              HasSubstr("layers.1.mlp.up_proj"));
  EXPECT_THAT(input_error([&] { model.extents("layers.1.mlp.up_proj"); }),
              HasSubstr(".weight or .bias"));
  EXPECT_THAT(input_error([&] { model.extents("norm.bias"); }), HasSubstr("no bias"));
  EXPECT_EQ(model.extents("layers.0.self_attn.q_proj.bias").rows, 12);
  EXPECT_EQ(model.extents("layers.0.self_attn.q_proj.bias").cols, 1);
  std::vector<float> row(12);
  EXPECT_THROW(model.read_rows("norm.weight", 0, 12, std::span<float>(row)), std::logic_error);
}

TEST(Model, ReadsOnlyWhatIsThere) {
  ModelOptions options;
  options.random_seed = 1;
  const TempFolder folder;
  folder.write("config.json", kLlama);
  const Model model = load_model(folder.path().string(), options);
  std::vector<float> row(12);
  EXPECT_THROW(model.read_rows("embed_tokens.weight", 17, 18, std::span<float>(row)), std::logic_error);
  EXPECT_THROW(model.read_rows("embed_tokens.weight", -1, 0, std::span<float>(row)), std::logic_error);
  EXPECT_THROW(model.read_rows("embed_tokens.weight", 3, 5, std::span<float>(row)), std::logic_error);
  EXPECT_NO_THROW(model.read_rows("embed_tokens.weight", 5, 5, std::span<float>()));
}

TEST(SyntheticModel, AShardIsTheSliceOfTheWhole) {
  ModelOptions options;
  options.random_seed = 42;
  for (const std::string_view config : {kLlama, kGpt2}) {
    const TempFolder folder;
    folder.write("config.json", config);
    const Model model = load_model(folder.path().string(), options);
    for (const Module& module : model.modules()) {
      std::vector<std::string> names{module.weight()};
      if (module.has_bias) names.push_back(module.bias());
      for (const std::string& name : names) {
        const std::vector<double> whole = read<double>(model, name);
        const std::vector<float> narrow = read<float>(model, name);
        EXPECT_TRUE(std::equal(whole.begin(), whole.end(), narrow.begin())) << name;
        const auto [rows, cols] = model.extents(name);
        for (std::int64_t row = 0; row < rows; ++row) {
          const std::vector<double> one = read<double>(model, name, row, row + 1);
          EXPECT_TRUE(std::equal(one.begin(), one.end(), whole.begin() + row * cols))
              << name << " " << row;
        }
      }
    }
    if (config == kGpt2) {
      EXPECT_EQ(read<double>(model, "lm_head.weight"), read<double>(model, "wte.weight"));
    }
  }
}

TEST(SyntheticModel, HasRealisticNumbers) {
  ModelOptions options;
  options.random_seed = 7;
  options.config.num_layers = 1;
  const Model model = load_model("smollm2-135m", options);
  const std::vector<double> gate = read<double>(model, "layers.0.mlp.gate_proj.weight");
  double squares = 0.0;
  for (const double x : gate) squares += x * x;
  // Variance 1 / in; six standard errors of a mean square whose kurtosis is 2.7.
  const double n = static_cast<double>(gate.size());
  EXPECT_LE(std::fabs(squares / n * 576.0 - 1.0), 6.0 * std::sqrt(1.7 / n));
  const std::vector<double> norm = read<double>(model, "norm.weight");
  std::size_t outliers = 0;
  for (const double x : norm) {
    EXPECT_GT(x, 0.0);
    outliers += x > 2.0 ? 1 : 0;
  }
  EXPECT_GE(outliers, 1u);
  EXPECT_LE(outliers, norm.size() / 64);
  EXPECT_NE(norm[0], norm[1]);
  options.random_seed = 8;
  EXPECT_NE(read<double>(load_model("smollm2-135m", options), "norm.weight"), norm);
  const Model qwen = load_model("qwen2-7b", options);
  for (const double x : read<double>(qwen, "layers.0.self_attn.k_proj.bias")) EXPECT_NE(x, 0.0);
}

TEST(SyntheticModel, IsReadByManyThreadsAtOnce) {
  ModelOptions options;
  options.random_seed = 5;
  const Model model = load_model("gpt2", options);
  const std::vector<float> expected = read<float>(model, "h.3.mlp.c_fc.weight", 0, 64);
  std::vector<int> equal(4, 0);
  std::vector<std::thread> threads;
  for (int& result : equal) {
    threads.emplace_back(
        [&] { result = read<float>(model, "h.3.mlp.c_fc.weight", 0, 64) == expected ? 1 : 0; });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(equal, std::vector<int>(4, 1));
}

TEST(LoadModel, SaysWhatIsMissing) {
  const TempFolder folder;
  const std::string path = folder.path().string();
  const auto error = [&](const std::string& model) {
    return input_error([&] { load_model(model); });
  };
  EXPECT_THAT(error(path), HasSubstr("config.json"));
  folder.write("config.json", kLlama);
  EXPECT_THAT(error(path), HasSubstr("--random"));
  EXPECT_THAT(error(path + "/config.json"), HasSubstr("--random"));
  EXPECT_THAT(error("llama-3-8b"), HasSubstr("--random"));
  EXPECT_THAT(error("llama-3-8x"), HasSubstr("llama-3-8b"));
  EXPECT_THAT(error(path + "/none"), HasSubstr("no such file or folder"));
  folder.write("model.safetensors", "");
  EXPECT_THAT(error(path + "/model.safetensors"), HasSubstr("a model is a folder"));
  EXPECT_THAT(error(path), HasSubstr("too few for a header"));
  ModelOptions shapes;
  shapes.shapes_only = true;
  EXPECT_EQ(load_model(path, shapes).config().vocab_size, 17);
  EXPECT_EQ(load_model("llama-3.1-405b", shapes).config().num_layers, 126);
}

TEST(LoadModel, CutsTheDepthOfAWholeCheckpoint) {
  const TempFolder folder;
  write_model(folder, kLlama, file_tensors(kLlama, DType::f32, "model."));
  ModelOptions options;
  options.config.num_layers = 1;
  EXPECT_EQ(load_model(folder.path().string(), options).modules().size(), 12u);
}

TEST(LoadModel, LooksForTheFetchedModelInTheCache) {
  const TempFolder folder;
  const char* const before = std::getenv("SHARDCHECK_CACHE");
  const std::string kept = before == nullptr ? "" : before;
  setenv("SHARDCHECK_CACHE", folder.path().c_str(), 1);
  EXPECT_EQ(cache_directory(), folder.path());
  EXPECT_THAT(input_error([] { load_model("smollm2"); }), HasSubstr("run fixtures/fetch smollm2"));
  if (before == nullptr) {
    unsetenv("SHARDCHECK_CACHE");
  } else {
    setenv("SHARDCHECK_CACHE", kept.c_str(), 1);
  }
}

TEST(Shipped, IsFoundByNameOrPath) {
  const TempFolder folder;
  std::filesystem::create_directory(folder.path() / "plans");
  std::filesystem::create_directory(folder.path() / "empty");
  folder.write("plans/megatron.json", "{}");
  folder.write("plans/replicated.json", "{}");
  setenv("SHARDCHECK_SHARE", folder.path().c_str(), 1);
  EXPECT_EQ(shipped_names("plans"), (std::vector<std::string>{"megatron", "replicated"}));
  EXPECT_EQ(find_shipped("plans", "megatron"), folder.path() / "plans/megatron.json");
  EXPECT_EQ(find_shipped("plans", "megatron.json"), folder.path() / "plans/megatron.json");
  const std::string path = (folder.path() / "plans/replicated.json").string();
  EXPECT_EQ(find_shipped("plans", path), path);
  EXPECT_THAT(input_error([] { find_shipped("plans", "megatorn"); }), HasSubstr("\"megatron\""));
  EXPECT_THAT(input_error([] { find_shipped("empty", "x"); }), HasSubstr("empty"));
  EXPECT_THAT(input_error([] { find_shipped("none", "x"); }), HasSubstr("none"));
  unsetenv("SHARDCHECK_SHARE");
  EXPECT_EQ(read_text(path), "{}");
  EXPECT_THAT(input_error([&] { read_text(folder.path()); }), HasSubstr("folder"));
  EXPECT_THAT(input_error([&] { read_text(folder.path() / "none"); }), HasSubstr("can't be read"));
}

}  // namespace
}  // namespace shardcheck
