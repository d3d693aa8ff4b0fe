// SPDX-License-Identifier: Apache-2.0
// What a golden file may hold, and the sentence for what it may not.
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>

#include "harness/golden.hpp"
#include "model/error.hpp"
#include "model/safetensors.hpp"

namespace shardcheck {
namespace {

const std::filesystem::path kModel = std::filesystem::path(SHARDCHECK_SOURCE_DIR) /
                                     "fixtures/models/tiny-llama";

using Tensors = std::map<std::string, HostTensor>;

HostTensor zeros(DType dtype, std::vector<std::int64_t> shape) { return {dtype, std::move(shape)}; }

HostTensor ids_of(const std::vector<std::int64_t>& values) {
  HostTensor ids(DType::i64, {1, static_cast<std::int64_t>(values.size())});
  std::copy(values.begin(), values.end(), ids.as_mutable<std::int64_t>().begin());
  return ids;
}

class GoldenFile : public testing::Test {
 protected:
  GoldenFile()
      : model_(load_model(kModel.string())),
        file_(std::filesystem::temp_directory_path() /
              ("shardcheck-golden-" + std::to_string(getpid()) + ".safetensors")) {
    const SafetensorsFile shipped = SafetensorsFile::open(kModel / "golden.safetensors");
    for (const std::string& name : shipped.names()) tensors_[name] = shipped.tensor(name);
  }
  ~GoldenFile() override { std::filesystem::remove(file_); }

  GoldenReport compare(const GoldenOptions& options = {}) const {
    const std::vector<std::pair<std::string, HostTensor>> list(tensors_.begin(), tensors_.end());
    write_safetensors(file_, list);
    return compare_golden(model_, file_, options);
  }

  // The message, which names the file; "passed" where nothing is wrong.
  std::string refusal(const GoldenOptions& options = {}) const {
    try {
      return compare(options).passed() ? "passed" : "failed";
    } catch (const InputError& error) {
      EXPECT_NE(std::string(error.what()).find(file_.string()), std::string::npos) << error.what();
      return error.what();
    }
  }

  bool says(const std::string& words, const GoldenOptions& options = {}) const {
    const std::string message = refusal(options);
    EXPECT_NE(message.find(words), std::string::npos) << message;
    return message.find(words) != std::string::npos;
  }

  void rename(const std::string& from, const std::string& to) {
    tensors_[to] = tensors_.at(from);
    tensors_.erase(from);
  }

  Model model_;
  std::filesystem::path file_;
  Tensors tensors_;
};

TEST_F(GoldenFile, PassesAsShipped) { EXPECT_EQ(refusal(), "passed"); }

TEST_F(GoldenFile, NeedsWellFormedIds) {
  for (const HostTensor& wrong : {zeros(DType::f64, {1, 15}), zeros(DType::i64, {15}),
                                  zeros(DType::i64, {2, 15}), zeros(DType::i64, {1, 0})}) {
    tensors_["ids"] = wrong;
    EXPECT_TRUE(says("needs I64 [1, T]"));
  }
  tensors_["ids"] = ids_of({1, 2, 320});
  EXPECT_TRUE(says("ids[2] is 320"));
  tensors_.erase("ids");
  EXPECT_TRUE(says("has no tensor 'ids'"));
}

TEST_F(GoldenFile, NeedsATokenBeforeTheDecodeSteps) {
  tensors_["ids"] = ids_of({1, 2, 3});
  EXPECT_TRUE(says("decode2"));
  tensors_["ids"] = ids_of({1, 2, 3, 4, 5});  // a prefill of 2, the tensors hold 12
  EXPECT_TRUE(says("has shape [1, 12, 48], but these ids give [1, 2, 48]"));
}

TEST_F(GoldenFile, NeedsShapeAndDtypeOfTheValue) {
  tensors_["prefill/model.layers.1.mlp"] = zeros(DType::f64, {12, 48});
  EXPECT_TRUE(says("needs F64, F32, F16 or BF16 and [1, tokens, features]"));
  tensors_["prefill/model.layers.1.mlp"] = zeros(DType::i64, {1, 12, 48});
  EXPECT_TRUE(says("'prefill/model.layers.1.mlp' is I64"));
  tensors_["prefill/model.layers.1.mlp"] = zeros(DType::f64, {1, 12, 47});
  EXPECT_TRUE(says("has shape [1, 12, 47], but these ids give [1, 12, 48]"));
}

TEST_F(GoldenFile, AnUnknownNameIsAnErrorWithTheNearestTapOrIsCounted) {
  rename("decode1/model.layers.1.mlp.up_proj", "decode1/model.layers.1.mlp.upproj");
  EXPECT_TRUE(
      says("'decode1/model.layers.1.mlp.upproj' names no tap of tiny-llama, the nearest is "
           "'layers.1.mlp.up_proj'"));
  rename("prefill/lm_head", "head");
  rename("decode0/lm_head", "decode-1/lm_head");
  EXPECT_TRUE(says("is neither prefill/<module path> nor decode<k>/<module path>"));
  const GoldenReport report = compare({.allow_unknown = true});
  EXPECT_EQ(report.unknown, 3);
  EXPECT_EQ(report.compared, static_cast<std::int64_t>(tensors_.size()) - 1 - 3);
  EXPECT_TRUE(report.passed());
}

TEST_F(GoldenFile, WithNothingToCompareDoesNotPass) {
  tensors_ = {{"ids", tensors_.at("ids")}, {"prefill/elsewhere", tensors_.at("prefill/lm_head")}};
  EXPECT_TRUE(says("holds no tensor to compare", {.allow_unknown = true}));
  tensors_.erase("prefill/elsewhere");
  EXPECT_TRUE(says("holds no tensor to compare"));
}

TEST_F(GoldenFile, AcceptsNamesWithoutPrefixAndAPrefillAlone) {
  Tensors prefill;
  for (const auto& [name, value] : tensors_) {
    if (name.starts_with("prefill/model.")) prefill["prefill/" + name.substr(14)] = value;
  }
  const HostTensor& all = tensors_.at("ids");
  const std::span<const std::int64_t> ids = all.as<std::int64_t>().first(12);
  prefill["ids"] = ids_of({ids.begin(), ids.end()});
  tensors_ = prefill;
  EXPECT_EQ(refusal(), "passed");
}

TEST_F(GoldenFile, AStoredF32IsAllowedItsRoundoffAndNoMore) {
  HostTensor& value = tensors_.at("prefill/lm_head");
  value = round_to(DType::f32, value.shape(), value.to_f64());
  EXPECT_EQ(refusal(), "passed");
  HostTensor changed(DType::f32, value.shape());
  const std::span<const float> from = value.as<float>();
  std::size_t largest = 0;
  for (std::size_t i = 0; i < from.size(); ++i) {
    if (std::abs(from[i]) > std::abs(from[largest])) largest = i;
  }
  const std::span<float> to = changed.as_mutable<float>();
  std::copy(from.begin(), from.end(), to.begin());
  to[largest] *= 1.0f + 0x1p-22f;  // four roundoffs
  value = changed;
  EXPECT_EQ(refusal(), "failed");
}

TEST_F(GoldenFile, AllZeroIsEqualToZeroOnly) {
  tensors_["prefill/lm_head"] = zeros(DType::f64, tensors_.at("prefill/lm_head").shape());
  const GoldenReport report = compare();
  EXPECT_FALSE(report.passed());
  EXPECT_EQ(report.rows[report.worst].tap, "lm_head");
  EXPECT_EQ(nlohmann::json::parse(golden_json(report))["worst"]["rel"], "inf");
}

TEST_F(GoldenFile, ReportsAsJsonAndAsATable) {
  const GoldenReport report = compare();
  const nlohmann::json json = nlohmann::json::parse(golden_json(report));
  EXPECT_EQ(json["schema"], "shardcheck.compare/1");
  EXPECT_EQ(json["compared"], static_cast<std::int64_t>(tensors_.size()) - 1);
  EXPECT_EQ(json["unknown"], 0);
  EXPECT_EQ(json["verdict"], "passed");
  const GoldenRow& worst = report.rows[report.worst];
  EXPECT_EQ(json["worst"]["phase"], worst.phase);
  EXPECT_EQ(json["worst"]["tap"], worst.tap);
  EXPECT_EQ(json["worst"]["rel"], worst.rel);
  for (const GoldenRow& row : report.rows) EXPECT_LE(row.rel, worst.rel);
  const std::string table = golden_table(report);
  EXPECT_NE(table.find("\nlayers.2.self_attn.o_proj "), std::string::npos) << table;
  EXPECT_EQ(table.find("FAILED"), std::string::npos) << table;
}

}  // namespace
}  // namespace shardcheck
