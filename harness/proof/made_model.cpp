// SPDX-License-Identifier: Apache-2.0
#include "harness/proof/made_model.hpp"

#include <map>
#include <memory>

#include "model/philox.hpp"
#include "model/sources.hpp"

namespace shardcheck {
namespace {

/// Weights of a config; dtypes as another model's checkpoint has them.
class MadeSource final : public WeightSource {
 public:
  MadeSource(const Model& like, const Config& config, MadeWeights values)
      : like_(like), values_(values), normals_(synthetic_source(kSeed, shardcheck::modules(config))) {
    for (const Module& module : shardcheck::modules(config)) columns_[module.weight()] = module.in;
  }

  std::optional<std::vector<std::int64_t>> shape(std::string_view tensor) const override {
    return normals_->shape(tensor);
  }
  DType dtype(std::string_view tensor) const override { return like_.dtype(tensor); }
  void read_rows(std::string_view tensor, std::int64_t begin, std::int64_t end,
                 std::span<double> out) const override {
    read(tensor, begin, end, out);
  }
  void read_rows(std::string_view tensor, std::int64_t begin, std::int64_t end,
                 std::span<float> out) const override {
    read(tensor, begin, end, out);
  }

 private:
  static constexpr std::uint64_t kSeed = 1;

  template <typename T>
  void read(std::string_view tensor, std::int64_t begin, std::int64_t end, std::span<T> out) const {
    if (values_ == MadeWeights::normal) return normals_->read_rows(tensor, begin, end, out);
    const RandomStream random(kSeed, tensor);
    const auto found = columns_.find(tensor);
    const std::int64_t columns = found == columns_.end() ? 1 : found->second;
    for (std::size_t i = 0; i < out.size(); ++i) {
      out[i] = static_cast<T>(
          small_integer(random.bits(static_cast<std::uint64_t>(begin * columns) + i)));
    }
  }

  const Model& like_;
  const MadeWeights values_;
  const std::unique_ptr<const WeightSource> normals_;
  std::map<std::string, std::int64_t, std::less<>> columns_;
};

}  // namespace

Model made_model(const Model& like, const Config& config, MadeWeights values) {
  return Model(config, std::make_unique<MadeSource>(like, config, values));
}

}  // namespace shardcheck
