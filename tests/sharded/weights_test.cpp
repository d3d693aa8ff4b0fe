// SPDX-License-Identifier: Apache-2.0
// The store of whole weights: rounded once from the checkpoint, held once, cut without changing a bit.
#include "sharded/weights.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <limits>
#include <map>
#include <mutex>

#include "model/error.hpp"
#include "tests/sharded/program_run.hpp"

namespace shardcheck {
namespace {

using ::testing::HasSubstr;

/// Synthetic weights with a few elements replaced, that counts what is read.
class Checkpoint final : public WeightSource {
 public:
  explicit Checkpoint(const std::vector<Module>& modules) : source_(synthetic_source(3, modules)) {}

  std::map<std::pair<std::string, std::int64_t>, double> replaced;  // by tensor and row: every element of that row
  mutable std::map<std::string, std::int64_t> rows_read;

  std::optional<std::vector<std::int64_t>> shape(std::string_view tensor) const override {
    return source_->shape(tensor);
  }
  DType dtype(std::string_view) const override { return DType::f64; }
  void read_rows(std::string_view tensor, std::int64_t begin, std::int64_t end,
                 std::span<double> out) const override {
    read(tensor, begin, end, out);
  }
  void read_rows(std::string_view tensor, std::int64_t begin, std::int64_t end,
                 std::span<float> out) const override {
    read(tensor, begin, end, out);
  }

 private:
  template <typename T>
  void read(std::string_view tensor, std::int64_t begin, std::int64_t end, std::span<T> out) const {
    source_->read_rows(tensor, begin, end, out);
    const std::size_t cols = end > begin ? out.size() / static_cast<std::size_t>(end - begin) : 0;
    for (std::int64_t row = begin; row < end; ++row) {
      const auto found = replaced.find({std::string(tensor), row});
      if (found == replaced.end()) continue;
      for (T& x : out.subspan(static_cast<std::size_t>(row - begin) * cols, cols))
        x = static_cast<T>(found->second);
    }
    const std::lock_guard lock(mutex_);
    rows_read[std::string(tensor)] += end - begin;
  }

  std::unique_ptr<const WeightSource> source_;
  mutable std::mutex mutex_;
};

struct Loaded {
  explicit Loaded(const SmallModel& shape,
                  std::map<std::pair<std::string, std::int64_t>, double> replaced = {}) {
    Config config = parse_config(config_text(shape), "small.json");
    auto source = std::make_unique<Checkpoint>(modules(config));
    source->replaced = std::move(replaced);
    checkpoint = source.get();
    model = std::make_unique<Model>(std::move(config), std::move(source));
  }
  const Checkpoint* checkpoint;
  std::unique_ptr<Model> model;
};

// Just above the middle between two neighbours: rounding to f32 first would lose what decides it.
TEST(WeightStore, RoundsOnceFromTheCheckpointsValue) {
  Loaded loaded({}, {{{"norm.weight", 0}, 1.0 + 0x1p-8 + 0x1p-40},
                     {{"norm.weight", 1}, 1.0 + 0x1p-11 + 0x1p-40},
                     {{"norm.weight", 2}, 1.0 + 0x1p-8},  // a tie goes to the even neighbour
                     {{"norm.weight", 3}, 1.0 + 0x3p-8},
                     {{"lm_head.weight", 256}, 1.0 + 0x1p-8 + 0x1p-40}});
  const HostTensor bf16 = WeightStore(*loaded.model, DType::bf16).whole("norm.weight");
  EXPECT_EQ(bf16.at(0), 1.0 + 0x1p-7);
  EXPECT_EQ(bf16.at(2), 1.0);
  EXPECT_EQ(bf16.at(3), 1.0 + 0x1p-6);
  const HostTensor f16 = WeightStore(*loaded.model, DType::f16).whole("norm.weight");
  EXPECT_EQ(f16.at(1), 1.0 + 0x1p-10);
  EXPECT_EQ(f16.at(2), 1.0 + 0x1p-8);
  const HostTensor f64 = WeightStore(*loaded.model, DType::f64).whole("norm.weight");
  EXPECT_EQ(f64.at(0), 1.0 + 0x1p-8 + 0x1p-40);
  const HostTensor matrix = WeightStore(*loaded.model, DType::bf16).whole("lm_head.weight");
  EXPECT_EQ(matrix.at(256 * 40 + 39), 1.0 + 0x1p-7);
  EXPECT_EQ(matrix.shape(), (std::vector<std::int64_t>{257, 40}));
}

TEST(WeightStore, HoldsEveryWeightOnceAndReadsItOnce) {
  Loaded loaded({"qwen2", 6, 3, 4, 20, 27, 50, 2, false, true});  // tied, with biases
  WeightStore store(*loaded.model, DType::f32);
  store.load_all(3);
  const auto device = builtin_devices().make("cpu");
  const auto stream = device->make_stream();
  std::size_t tensors = 0;
  for (const Module& module : loaded.model->modules()) {
    for (const std::string& tensor : {module.weight(), module.bias()}) {
      if (tensor == module.bias() && !module.has_bias) continue;
      EXPECT_EQ(store.whole(tensor).data(), store.whole(tensor).data());
      store.shard(tensor, {{0, 1}}, {{0, 1}}, *device, *stream);
      tensors += module.tied_to ? 0 : 1;
    }
    if (!module.tied_to) {
      EXPECT_EQ(loaded.checkpoint->rows_read.at(module.weight()), module.out) << module.path;
    }
  }
  EXPECT_EQ(store.whole("lm_head.weight").data(), store.whole("embed_tokens.weight").data());
  EXPECT_EQ(loaded.checkpoint->rows_read.size(), tensors);
}

TEST(WeightStore, CutsWithoutChangingABit) {
  Loaded loaded({"llama", 9, 3, 8, 40, 53, 257, 1, true});
  const auto device = builtin_devices().make("cpu");
  const auto stream = device->make_stream();
  for (const DType dtype : {DType::f64, DType::f32, DType::bf16, DType::f16}) {
    WeightStore store(*loaded.model, dtype);
    const HostTensor whole = store.whole("layers.0.mlp.down_proj.weight");  // [40, 53]
    const std::vector<Ranges> cuts{{{0, 40}}, {{3, 17}}, {{30, 40}, {0, 5}, {9, 9}}, {}};
    for (const Ranges& rows : cuts) {
      for (const Ranges& cols : cuts) {
        const HostTensor shard = device->to_host(
            *stream, store.shard("layers.0.mlp.down_proj.weight", rows, cols, *device, *stream));
        ASSERT_EQ(shard.shape(), (std::vector<std::int64_t>{total(rows), total(cols)}));
        std::int64_t at = 0;
        for (const Range& row_range : rows) {
          for (std::int64_t row = row_range.begin; row < row_range.end; ++row) {
            for (const Range& col_range : cols) {
              for (std::int64_t col = col_range.begin; col < col_range.end; ++col)
                EXPECT_EQ(shard.at(at++), whole.at(row * 53 + col));
            }
          }
        }
      }
    }
    const HostTensor bias = device->to_host(
        *stream, store.shard("layers.0.mlp.down_proj.bias", {{0, 1}}, {{7, 9}}, *device, *stream));
    EXPECT_EQ(bias.shape(), (std::vector<std::int64_t>{1, 2}));
    EXPECT_EQ(bias.at(1), store.whole("layers.0.mlp.down_proj.bias").at(8));
  }
}

TEST(WeightStore, GivesViewsOnTheCpuAndShapesOnMeta) {
  Loaded loaded({});
  WeightStore store(*loaded.model, DType::bf16);
  const auto cpu = builtin_devices().make("cpu"), meta = builtin_devices().make("meta");
  const auto stream = cpu->make_stream(), meta_stream = meta->make_stream();
  const std::string tensor = "layers.1.mlp.up_proj.weight";  // [53, 40]
  const Tensor view = store.shard(tensor, {{10, 20}}, {{4, 36}}, *cpu, *stream);
  EXPECT_EQ(view.row_stride, 40);
  EXPECT_EQ(view.offset, 10 * 40 + 4);
  const Tensor shape = store.shard("layers.0.mlp.up_proj.weight", {{10, 20}}, {{4, 6}, {0, 1}},
                                   *meta, *meta_stream);
  EXPECT_EQ(shape.rows, 10);
  EXPECT_EQ(shape.cols, 3);
  EXPECT_EQ(loaded.checkpoint->rows_read.count("layers.0.mlp.up_proj.weight"), 0u);
}

TEST(WeightStore, NamesAWeightThatIsNotANumber) {
  Loaded loaded(
      {}, {{{"layers.1.self_attn.v_proj.weight", 17}, std::numeric_limits<double>::quiet_NaN()}});
  for (const DType dtype : {DType::f64, DType::f32, DType::bf16}) {
    WeightStore store(*loaded.model, dtype);
    try {
      store.load_all(2);
      FAIL() << "row 17 is NaN";
    } catch (const InputError& error) {
      EXPECT_THAT(error.what(), HasSubstr("layers.1.self_attn.v_proj.weight"));
      EXPECT_THAT(error.what(), HasSubstr("17"));
    }
  }
}

TEST(WeightStore, TakesValuesFromElsewhereByTheNameThatIsStored) {
  const Model model = shapes({.tied = true});
  WeightStore store(model, DType::f64, [](const std::string& tensor, HostTensor& whole) {
    const auto out = whole.as_mutable<double>();
    for (std::size_t i = 0; i < out.size(); ++i) out[i] = static_cast<double>(tensor.size() * 1000 + i);
  });
  const HostTensor table = store.whole("embed_tokens.weight");  // [257, 40]
  EXPECT_EQ(table.shape(), (std::vector<std::int64_t>{257, 40}));
  EXPECT_EQ(table.at(41), 19041.0);
  EXPECT_EQ(store.whole("lm_head.weight").data(), table.data());  // tied: the same tensor
  EXPECT_EQ(store.whole("norm.weight").shape(), (std::vector<std::int64_t>{1, 40}));
  const auto cpu = builtin_devices().make("cpu");
  const auto stream = cpu->make_stream();
  const Tensor shard = store.shard("embed_tokens.weight", {{3, 5}}, {{1, 3}}, *cpu, *stream);
  EXPECT_EQ(cpu->to_host(*stream, shard).to_f64(), (std::vector<double>{19121, 19122, 19161, 19162}));
}

// A matrix of one column is no vector.
TEST(WeightStore, RunsAModelWithOneFeatureInTheMiddle) {
  const Registry ops = builtin_ops();
  const Model model = make_model({"llama", 2, 1, 4, 12, 1, 21, 1});
  const Ran one = run(model, megatron(), line(1), {prefill({4}, 21)}, ops);
  const Ran two = run(model, megatron(), line(2), {prefill({4}, 21)}, ops);
  expect_same_values(one, two, summation_limit(model.config()));
}

}  // namespace
}  // namespace shardcheck
