// SPDX-License-Identifier: Apache-2.0
#include "model/gguf.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <map>
#include <vector>

#include "gguf_writer.hpp"
#include "input_error.hpp"
#include "model/float_bits.hpp"
#include "model/model.hpp"
#include "model/philox.hpp"
#include "model/quant.hpp"
#include "temp_folder.hpp"

namespace shardcheck {
namespace {

using testing::HasSubstr;

constexpr float kEpsilon = 1e-5f;

/// Finite bytes of any dtype: random quants under moderate f16 scales.
std::string tensor_bytes(DType dtype, const std::string& tensor, std::size_t elements) {
  const DTypeInfo& facts = info(dtype);
  const RandomStream stream(11, tensor);
  std::string bytes;
  if (facts.block_elements == 1) {
    for (std::size_t i = 0; i < elements; ++i) {
      const auto value = static_cast<float>(normal(11, tensor, i));
      if (dtype == DType::f32) bytes += GgufWriter::scalar(value);
      if (dtype == DType::f16) bytes += GgufWriter::scalar(f32_to_f16(value));
      if (dtype == DType::bf16) bytes += GgufWriter::scalar(f32_to_bf16(value));
    }
    return bytes;
  }
  bytes.resize(elements / static_cast<std::size_t>(facts.block_elements) * facts.block_bytes);
  for (std::size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<char>(stream.bits(i));
  for (std::size_t block = 0; block < bytes.size(); block += facts.block_bytes) {
    const std::size_t first = block + (dtype == DType::q6_k ? 208 : 0);
    bytes[first + 1] = 0x34;
    if (dtype == DType::q4_1 || dtype == DType::q4_k) bytes[first + 3] = 0x34;
  }
  return bytes;
}

struct Stored {
  DType dtype;
  std::vector<std::int64_t> shape;
  std::string bytes;
};

/// A llama of 2 layers: hidden 32, 4 heads of 8, 2 kv heads, ffn 256, 40 tokens; every tensor type is in it.
class TinyGguf {
 public:
  explicit TinyGguf(const std::string& architecture = "llama") : architecture_(architecture) {
    add("token_embd.weight", DType::q8_0, {40, 32});
    for (int layer = 0; layer < 2; ++layer) {
      const std::string at = "blk." + std::to_string(layer) + ".";
      add(at + "attn_norm.weight", DType::f32, {32});
      add(at + "attn_q.weight", DType::q4_1, {32, 32});
      add(at + "attn_k.weight", layer == 0 ? DType::q4_0 : DType::f32, {16, 32});
      add(at + "attn_v.weight", DType::q8_0, {16, 32});
      for (const auto& [bias, rows] :
           std::map<std::string, std::int64_t>{{"attn_q", 32}, {"attn_k", 16}, {"attn_v", 16}}) {
        add(at + bias + ".bias", DType::f32, {rows});
      }
      add(at + "attn_output.weight", DType::f16, {32, 32});
      add(at + "ffn_norm.weight", DType::f32, {32});
      add(at + "ffn_gate.weight", DType::bf16, {256, 32});
      add(at + "ffn_up.weight", DType::f32, {256, 32});
      add(at + "ffn_down.weight", layer == 0 ? DType::q4_k : DType::q6_k, {32, 256});
    }
    add("output_norm.weight", DType::f32, {32});
  }

  void add(const std::string& name, DType dtype, const std::vector<std::int64_t>& shape) {
    std::size_t elements = 1;
    for (const std::int64_t extent : shape) elements *= static_cast<std::size_t>(extent);
    tensors[name] = {dtype, shape, tensor_bytes(dtype, name, elements)};
  }

  GgufWriter writer() const {
    GgufWriter file;
    const std::string& a = architecture_;
    file.add_string("general.architecture", a);
    file.add_strings("tokenizer.ggml.tokens", {"a", "", "bc"});
    file.add_u32(a + ".block_count", 2);
    file.add_u32(a + ".context_length", 64);
    file.add_u32(a + ".embedding_length", 32);
    file.add_u32(a + ".feed_forward_length", 256);
    file.add_u32(a + ".attention.head_count", 4);
    file.add_u32(a + ".attention.head_count_kv", 2);
    file.add_u32(a + ".rope.dimension_count", 8);
    file.add_f32(a + ".rope.freq_base", 100000.0f);
    file.add_f32(a + ".attention.layer_norm_rms_epsilon", kEpsilon);
    for (const auto& [name, tensor] : tensors)
      file.add_tensor(name, tensor.dtype, tensor.shape, tensor.bytes);
    return file;
  }

  /// Row `row` of a tensor as the file has it.
  std::vector<float> row(const std::string& name, std::int64_t row) const {
    const Stored& tensor = tensors.at(name);
    const std::int64_t cols = tensor.shape.size() == 2 ? tensor.shape[1] : 1;
    std::vector<float> values(static_cast<std::size_t>(cols));
    dequantize(tensor.dtype, std::as_bytes(std::span(tensor.bytes)), row * cols, values);
    return values;
  }

  std::map<std::string, Stored> tensors;

 private:
  std::string architecture_;
};

std::vector<float> read_row(const Model& model, const std::string& tensor, std::int64_t row) {
  std::vector<float> values(static_cast<std::size_t>(model.extents(tensor).cols));
  model.read_rows(tensor, row, row + 1, std::span<float>(values));
  return values;
}

/// Reads every tensor whole, in both widths: they must agree.
void read_everything(const Model& model) {
  for (const Module& module : model.modules()) {
    std::vector<std::string> names{module.weight()};
    if (module.has_bias) names.push_back(module.bias());
    for (const std::string& name : names) {
      const auto [rows, cols] = model.extents(name);
      std::vector<float> narrow(static_cast<std::size_t>(rows * cols));
      std::vector<double> wide(narrow.size());
      model.read_rows(name, 0, rows, std::span<float>(narrow));
      model.read_rows(name, 0, rows, std::span<double>(wide));
      EXPECT_TRUE(std::equal(narrow.begin(), narrow.end(), wide.begin())) << name;
    }
  }
}

/// Where half-split row `row` lies in a file of the llama architecture: written as a converter does it, by listing the
/// rows of a [heads, 2, head_dim / 2] array with the last two axes exchanged.
std::int64_t file_row(std::int64_t row, std::int64_t rows, std::int64_t head_dim) {
  std::int64_t at = 0;
  for (std::int64_t head = 0; head < rows / head_dim; ++head) {
    for (std::int64_t pair = 0; pair < head_dim / 2; ++pair) {
      for (std::int64_t half = 0; half < 2; ++half, ++at) {
        if ((head * 2 + half) * (head_dim / 2) + pair == row) return at;
      }
    }
  }
  return -1;
}

TEST(Gguf, MetadataIsTheConfig) {
  const TempFolder folder;
  const auto file = folder.write("tiny.gguf", TinyGguf().writer().bytes());
  const Config config = gguf_config(GgufFile::open(file));
  EXPECT_EQ(config.name, "tiny");
  EXPECT_EQ(config.model_type, "llama");
  EXPECT_EQ(config.hidden_size, 32);
  EXPECT_EQ(config.num_layers, 2);
  EXPECT_EQ(config.num_heads, 4);
  EXPECT_EQ(config.num_kv_heads, 2);
  EXPECT_EQ(config.head_dim, 8);
  EXPECT_EQ(config.intermediate_size, 256);
  EXPECT_EQ(config.vocab_size, 40);
  EXPECT_EQ(config.max_positions, 64);
  EXPECT_EQ(config.norm_eps, double{kEpsilon});
  EXPECT_EQ(config.rope.theta, 100000.0);
  EXPECT_TRUE(config.tied_embeddings && config.qkv_bias);
  EXPECT_FALSE(config.o_bias || config.mlp_bias);
}

TEST(Gguf, EveryTensorHasHuggingFaceNameAndOrder) {
  const TempFolder folder;
  const TinyGguf tiny;
  const Model model = load_model(folder.write("tiny.gguf", tiny.writer().bytes()).string());
  read_everything(model);
  const std::map<std::string, std::string> same_order = {
      {"embed_tokens.weight", "token_embd.weight"},
      {"lm_head.weight", "token_embd.weight"},
      {"layers.0.input_layernorm.weight", "blk.0.attn_norm.weight"},
      {"layers.1.self_attn.v_proj.weight", "blk.1.attn_v.weight"},
      {"layers.1.self_attn.v_proj.bias", "blk.1.attn_v.bias"},
      {"layers.1.self_attn.o_proj.weight", "blk.1.attn_output.weight"},
      {"layers.1.post_attention_layernorm.weight", "blk.1.ffn_norm.weight"},
      {"layers.0.mlp.gate_proj.weight", "blk.0.ffn_gate.weight"},
      {"layers.0.mlp.up_proj.weight", "blk.0.ffn_up.weight"},
      {"layers.0.mlp.down_proj.weight", "blk.0.ffn_down.weight"},
      {"layers.1.mlp.down_proj.weight", "blk.1.ffn_down.weight"},
      {"norm.weight", "output_norm.weight"}};
  for (const auto& [name, stored] : same_order) {
    for (std::int64_t row = 0; row < model.extents(name).rows; ++row) {
      EXPECT_EQ(read_row(model, name, row), tiny.row(stored, row)) << name << " " << row;
    }
  }
  EXPECT_EQ(model.dtype("layers.0.mlp.down_proj.weight"), DType::q4_k);
  EXPECT_EQ(model.dtype("lm_head.weight"), DType::q8_0);
}

TEST(Gguf, RowsOfQAndKAreUnpermutedForLlamaOnly) {
  const TempFolder folder;
  const TinyGguf llama;
  const TinyGguf qwen("qwen2");
  const Model llama_model = load_model(folder.write("llama.gguf", llama.writer().bytes()).string());
  const Model qwen_model = load_model(folder.write("qwen.gguf", qwen.writer().bytes()).string());
  EXPECT_EQ(qwen_model.config().model_type, "qwen2");
  std::size_t moved = 0;
  for (const std::string layer : {"0", "1"}) {
    for (const std::string letter : {"q", "k"}) {
      for (const std::string tail : {".weight", ".bias"}) {
        const std::string name = "layers." + layer + ".self_attn." + letter + "_proj" + tail;
        const std::string stored = "blk." + layer + ".attn_" + letter + tail;
        const std::int64_t rows = llama_model.extents(name).rows;
        for (std::int64_t row = 0; row < rows; ++row) {
          EXPECT_EQ(read_row(llama_model, name, row), llama.row(stored, file_row(row, rows, 8)))
              << name << " " << row;
          EXPECT_EQ(read_row(qwen_model, name, row), qwen.row(stored, row)) << name << " " << row;
          moved += file_row(row, rows, 8) != row ? 1 : 0;
        }
      }
    }
  }
  EXPECT_GT(moved, 0u);
}

TEST(Gguf, ReadsTheNormsOfAQwen3) {
  const TempFolder folder;
  TinyGguf tiny("qwen3");
  for (const std::string at : {"blk.0.", "blk.1."}) {
    tiny.add(at + "attn_q_norm.weight", DType::f32, {8});
    tiny.add(at + "attn_k_norm.weight", DType::f32, {8});
  }
  const Model model = load_model(folder.write("tiny.gguf", tiny.writer().bytes()).string());
  EXPECT_EQ(model.config().family, Family::qwen3);
  read_everything(model);
  for (std::int64_t row = 0; row < 8; ++row) {
    EXPECT_EQ(read_row(model, "layers.1.self_attn.q_norm.weight", row),
              tiny.row("blk.1.attn_q_norm.weight", row));
    EXPECT_EQ(read_row(model, "layers.0.self_attn.k_norm.weight", row),
              tiny.row("blk.0.attn_k_norm.weight", row));
  }
  for (std::int64_t row = 0; row < 32; ++row)  // rotated in halves in the file already
    EXPECT_EQ(read_row(model, "layers.1.self_attn.q_proj.weight", row),
              tiny.row("blk.1.attn_q.weight", row));
}

TEST(Gguf, AnOutputMatrixUntiesTheHead) {
  const TempFolder folder;
  TinyGguf tiny;
  tiny.add("output.weight", DType::f16, {40, 32});
  const Model model = load_model(folder.write("tiny.gguf", tiny.writer().bytes()).string());
  EXPECT_FALSE(model.config().tied_embeddings);
  EXPECT_EQ(read_row(model, "lm_head.weight", 39), tiny.row("output.weight", 39));
}

TEST(Gguf, ReadsGpt2WithoutTransposing) {
  const TempFolder folder;
  GgufWriter file;
  file.add_string("general.architecture", "gpt2");
  for (const auto& [key, value] : std::map<std::string, std::uint32_t>{{"block_count", 1},
                                                                       {"context_length", 9},
                                                                       {"embedding_length", 6},
                                                                       {"attention.head_count", 2},
                                                                       {"feed_forward_length", 10}}) {
    file.add_u32("gpt2." + key, value);
  }
  file.add_f32("gpt2.attention.layer_norm_epsilon", kEpsilon);
  const std::map<std::string, std::vector<std::int64_t>> shapes = {
      {"token_embd.weight", {11, 6}},       {"position_embd.weight", {9, 6}},
      {"output_norm.weight", {6}},          {"output_norm.bias", {6}},
      {"blk.0.attn_norm.weight", {6}},      {"blk.0.attn_norm.bias", {6}},
      {"blk.0.ffn_norm.weight", {6}},       {"blk.0.ffn_norm.bias", {6}},
      {"blk.0.attn_qkv.weight", {18, 6}},   {"blk.0.attn_qkv.bias", {18}},
      {"blk.0.attn_output.weight", {6, 6}}, {"blk.0.attn_output.bias", {6}},
      {"blk.0.ffn_up.weight", {10, 6}},     {"blk.0.ffn_up.bias", {10}},
      {"blk.0.ffn_down.weight", {6, 10}},   {"blk.0.ffn_down.bias", {6}}};
  for (const auto& [name, shape] : shapes) {
    const std::int64_t elements = shape[0] * (shape.size() == 2 ? shape[1] : 1);
    file.add_tensor(name, DType::f32, shape,
                    tensor_bytes(DType::f32, name, static_cast<std::size_t>(elements)));
  }
  const Model model = load_model(folder.write("g.gguf", file.bytes()).string());
  EXPECT_EQ(model.config().family, Family::gpt2);
  EXPECT_TRUE(model.config().tied_embeddings);
  read_everything(model);
  const std::vector<float> row = read_row(model, "h.0.attn.c_attn.weight", 17);
  for (std::size_t col = 0; col < 6; ++col) {
    EXPECT_EQ(row[col], static_cast<float>(normal(11, "blk.0.attn_qkv.weight", 17 * 6 + col)));
  }
}

TEST(Gguf, RefusesWhatWouldChangeTheModel) {
  const TempFolder folder;
  const auto load_error = [&](const std::string& bytes) {
    const auto file = folder.write("x.gguf", bytes);
    const std::string message = input_error([&] { load_model(file.string()); });
    EXPECT_THAT(message, HasSubstr("x"));
    return message;
  };
  const auto with_key = [](const auto& change) {
    GgufWriter file = TinyGguf().writer();
    change(file);
    return file.bytes();
  };
  EXPECT_THAT(load_error(with_key([](GgufWriter& f) { f.add_f32("llama.attention.clamp", 3.0f); })),
              HasSubstr("--ignore-key llama.attention.clamp"));
  EXPECT_THAT(load_error(with_key([](GgufWriter& f) { f.add_u32("llama.expert_count", 8); })),
              HasSubstr("expert_count"));
  EXPECT_NO_THROW(load_model(
      folder.write("ok.gguf", with_key([](GgufWriter& f) { f.add_u32("llama.expert_count", 0); })).string()));
  EXPECT_THAT(
      load_error(with_key([](GgufWriter& f) { f.add_string("llama.rope.scaling.type", "yarn"); })),
      HasSubstr("yarn"));
  EXPECT_THAT(load_error(with_key([](GgufWriter& f) { f.add_u32("llama.attention.key_length", 16); })),
              HasSubstr("dimension_count"));
  EXPECT_THAT(load_error(with_key([](GgufWriter& f) { f.add_u32("llama.block_count", 2); })),
              HasSubstr("twice"));
  EXPECT_THAT(load_error(TinyGguf("mamba").writer().bytes()),
              HasSubstr("llama, qwen2, qwen3 or gpt2"));
  for (const char* other : {"olmo2", "phi3"})
    EXPECT_THAT(load_error(TinyGguf(other).writer().bytes()),
                HasSubstr("safetensors with its config.json"));

  TinyGguf factors;
  factors.add("rope_freqs.weight", DType::f32, {4});
  EXPECT_THAT(load_error(factors.writer().bytes()), HasSubstr("rope_freqs.weight"));
  factors.tensors["rope_freqs.weight"].bytes.clear();
  for (int i = 0; i < 4; ++i)
    factors.tensors["rope_freqs.weight"].bytes += GgufWriter::scalar(1.0f);
  EXPECT_NO_THROW(load_model(folder.write("ok.gguf", factors.writer().bytes()).string()));

  TinyGguf missing;
  missing.tensors.erase("blk.1.ffn_up.weight");
  EXPECT_THAT(load_error(missing.writer().bytes()), HasSubstr("layers.1.mlp.up_proj.weight"));
  TinyGguf extra;
  extra.add("blk.2.ffn_up.weight", DType::f32, {256, 32});
  EXPECT_THAT(load_error(extra.writer().bytes()), HasSubstr("blk.2.ffn_up.weight"));
  TinyGguf misshapen;
  misshapen.add("blk.1.ffn_up.weight", DType::f32, {32, 256});
  EXPECT_THAT(load_error(misshapen.writer().bytes()), HasSubstr("[32, 256]"));
}

TEST(Gguf, CutsTheDepthAndTakesRandomWeights) {
  const TempFolder folder;
  const auto file = folder.write("tiny.gguf", TinyGguf().writer().bytes());
  ModelOptions options;
  options.config.num_layers = 1;
  const Model cut = load_model(file.string(), options);
  EXPECT_EQ(cut.config().num_layers, 1);
  read_everything(cut);
  options.random_seed = 3;
  const Model random = load_model(file.string(), options);
  EXPECT_EQ(random.dtype("norm.weight"), DType::f32);
  read_everything(random);
  options.config.num_layers = 3;
  EXPECT_THAT(input_error([&] { load_model(file.string(), options); }), HasSubstr("--layers 3"));
}

// Every prefix fails; every change of a header byte loads (and reads) or fails with one InputError.
TEST(Gguf, DamagedFilesNeverCrash) {
  const TempFolder folder;
  const GgufWriter writer = TinyGguf().writer();
  const std::string bytes = writer.bytes();
  const std::size_t header = writer.header().size();
  const auto attempt = [&](std::string_view changed) {
    const auto file = folder.write("damaged.gguf", changed);
    try {
      read_everything(load_model(file.string()));
      return true;
    } catch (const InputError&) {
      return false;
    }
  };
  ASSERT_TRUE(attempt(bytes));
  // A last tensor without its padding is whole.
  for (std::size_t length = 0; length < header; ++length) {
    ASSERT_FALSE(attempt(std::string_view(bytes).substr(0, length))) << length;
  }
  for (std::size_t length = header; length < bytes.size() - 31; length += 511) {
    ASSERT_FALSE(attempt(std::string_view(bytes).substr(0, length))) << length;
  }
  std::size_t refused = 0;
  for (std::size_t at = 0; at < header; ++at) {
    for (const int flip : {1, 2, 16, 128}) {
      std::string changed = bytes;
      changed[at] = static_cast<char>(changed[at] ^ flip);
      refused += attempt(changed) ? 0 : 1;
    }
  }
  EXPECT_GT(refused, header) << "names, counts and offsets are checked";
}

TEST(Gguf, LyingCountsDoNotAllocate) {
  const TempFolder folder;
  const auto open_error = [&](const std::string& bytes) {
    const auto file = folder.write("lie.gguf", bytes);
    return input_error([&] { GgufFile::open(file); });
  };
  const auto u32 = [](std::uint32_t value) { return GgufWriter::scalar(value); };
  const auto u64 = [](std::uint64_t value) { return GgufWriter::scalar(value); };
  const std::string start = "GGUF" + u32(3);
  EXPECT_THAT(open_error(start + u64(~0ULL) + u64(0)), HasSubstr("lie.gguf"));
  EXPECT_THAT(open_error(start + u64(0) + u64(~0ULL)), HasSubstr("metadata key"));
  EXPECT_THAT(open_error(start + u64(0) + u64(1) + u64(~0ULL)), HasSubstr("metadata key"));
  const std::string key = start + u64(0) + u64(1) + u64(1) + "k";
  EXPECT_THAT(open_error(key + u32(13)), HasSubstr("value type 13"));
  EXPECT_THAT(open_error(key + u32(9) + u32(4) + u64(1ULL << 62)), HasSubstr("list"));
  EXPECT_THAT(open_error(key + u32(9) + u32(8) + u64(~0ULL)), HasSubstr("string"));
  std::string nested = key + u32(9);
  for (int i = 0; i < 100; ++i) nested += u32(9) + u64(1);
  EXPECT_THAT(open_error(nested), HasSubstr("nested"));
  const std::string tensor = start + u64(1) + u64(0) + u64(1) + "t";
  EXPECT_THAT(open_error(tensor + u32(5)), HasSubstr("5 dimensions"));
  EXPECT_THAT(open_error(tensor + u32(2) + u64(1ULL << 40) + u64(1ULL << 40) + u32(0) + u64(0)),
              HasSubstr("extent"));
  EXPECT_THAT(open_error(tensor + u32(1) + u64(1ULL << 61) + u32(0) + u64(0)), HasSubstr("\"t\""));
  EXPECT_THAT(open_error(tensor + u32(1) + u64(33) + u32(8) + u64(0)), HasSubstr("multiple of 32"));
  EXPECT_THAT(open_error(tensor + u32(1) + u64(8) + u32(0) + u64(~0ULL - 31)), HasSubstr("offset"));
  EXPECT_THAT(open_error(tensor + u32(1) + u64(8) + u32(13) + u64(0)), HasSubstr("ggml type 13"));
  EXPECT_THAT(open_error("GGUF" + u32(1) + u64(0) + u64(0)), HasSubstr("version 1"));
  EXPECT_THAT(open_error("GGML" + u32(3) + u64(0) + u64(0)), HasSubstr("begin with GGUF"));
}

}  // namespace
}  // namespace shardcheck
