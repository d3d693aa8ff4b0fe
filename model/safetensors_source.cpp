// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <functional>
#include <map>
#include <stdexcept>
#include <string>
#include <utility>

#include "model/error.hpp"
#include "model/float_bits.hpp"
#include "model/sources.hpp"

namespace shardcheck {
namespace {

struct Entry {
  std::span<const std::byte> bytes;  // whole tensor, row-major as stored
  DType dtype = DType::f32;
  std::vector<std::int64_t> shape;  // canonical
  bool transposed = false;          // stored as [cols, rows]
};

/// Elements [first, first + out.size()) of `bytes`, which need not be aligned.
template <typename Stored, typename T, typename Convert>
void convert(std::span<const std::byte> bytes, std::int64_t first, std::span<T> out,
             Convert convert_one) {
  const std::byte* from = bytes.data() + static_cast<std::size_t>(first) * sizeof(Stored);
  for (std::size_t i = 0; i < out.size(); ++i) {
    Stored value;
    std::memcpy(&value, from + i * sizeof(Stored), sizeof(Stored));
    out[i] = static_cast<T>(convert_one(value));
  }
}

template <typename T>
void read_elements(const Entry& entry, std::int64_t first, std::span<T> out) {
  switch (entry.dtype) {
    case DType::f64:
      return convert<double>(entry.bytes, first, out, [](double x) { return x; });
    case DType::f32:
      return convert<float>(entry.bytes, first, out, [](float x) { return x; });
    case DType::f16:
      return convert<std::uint16_t>(entry.bytes, first, out, f16_to_f32);
    case DType::bf16:
      return convert<std::uint16_t>(entry.bytes, first, out, bf16_to_f32);
    default:
      throw std::logic_error("a weight in a dtype that isn't floating");
  }
}

/// Rows [begin, end) of the canonical matrix, which is stored transposed. The file's rows are read in pieces of one
/// tile's width, so that both sides stay in the cache.
template <typename T>
void read_transposed(const Entry& entry, std::int64_t begin, std::int64_t end, std::span<T> out) {
  constexpr std::int64_t kTile = 32;
  const std::int64_t rows = entry.shape[0];
  const std::int64_t cols = entry.shape[1];
  T tile[kTile];
  for (std::int64_t row = begin; row < end; row += kTile) {
    const std::int64_t width = std::min(kTile, end - row);
    for (std::int64_t col = 0; col < cols; ++col) {
      read_elements(entry, col * rows + row, std::span<T>(tile, static_cast<std::size_t>(width)));
      T* to = out.data() + (row - begin) * cols + col;
      for (std::int64_t i = 0; i < width; ++i) to[i * cols] = tile[i];
    }
  }
}

/// Buffers that transformers saved with some models: they are computed, not learned.
bool is_known_buffer(std::string_view name) {
  const auto ends_with = [&](std::string_view tail) {
    return name.size() >= tail.size() && name.substr(name.size() - tail.size()) == tail;
  };
  const bool gpt2_mask = name.substr(0, 2) == "h." &&
                         (ends_with(".attn.bias") || ends_with(".attn.masked_bias"));
  return gpt2_mask || ends_with("rotary_emb.inv_freq");
}

struct Expected {
  const Module* module;
  bool is_bias;
};

std::map<std::string, Expected, std::less<>> expected_tensors(const std::vector<Module>& modules) {
  std::map<std::string, Expected, std::less<>> expected;
  for (const Module& module : modules) {
    expected[module.weight()] = {&module, false};
    if (module.has_bias) expected[module.bias()] = {&module, true};
  }
  return expected;
}

[[noreturn]] void fail_unexpected(const SafetensorsFile& file, const std::string& stored,
                                  const std::map<std::string, Expected, std::less<>>& expected) {
  std::vector<std::string> names;
  for (const auto& entry : expected) names.push_back(entry.first);
  throw InputError(fmt::format(
      "{}: the model that config.json describes has no tensor \"{}\" (nearest: \"{}\"); use the "
      "config.json that belongs to these weights",
      file.path().string(), stored, nearest_name(strip_prefix(stored), names)));
}

class SafetensorsSource final : public WeightSource {
 public:
  SafetensorsSource(std::vector<SafetensorsFile> files, const std::vector<Module>& modules)
      : files_(std::move(files)) {
    const auto expected = expected_tensors(modules);
    for (const SafetensorsFile& file : files_) {
      for (const std::string& stored : file.names()) {
        const std::string name(strip_prefix(stored));
        if (is_known_buffer(name)) continue;
        const auto it = expected.find(name);
        if (it == expected.end()) fail_unexpected(file, stored, expected);
        add(file, stored, name, it->second);
      }
    }
    for (const Module& module : modules) {
      if (module.tied_to) check_tied_copy(module);
    }
  }

  std::optional<std::vector<std::int64_t>> shape(std::string_view tensor) const override {
    const auto it = entries_.find(tensor);
    if (it == entries_.end()) return std::nullopt;
    return it->second.shape;
  }

  DType dtype(std::string_view tensor) const override {
    return entries_.find(tensor)->second.dtype;
  }

  void read_rows(std::string_view tensor, std::int64_t begin, std::int64_t end,
                 std::span<double> out) const override {
    read(tensor, begin, end, out);
  }
  void read_rows(std::string_view tensor, std::int64_t begin, std::int64_t end,
                 std::span<float> out) const override {
    read(tensor, begin, end, out);
  }

 private:
  void add(const SafetensorsFile& file, const std::string& stored, const std::string& name,
           const Expected& expected) {
    const SafetensorsInfo& info = file.info(stored);
    if (!info.dtype || !is_float(*info.dtype)) {
      throw InputError(
          fmt::format("{}: tensor \"{}\" has dtype {}; weights must be F64, F32, F16 or BF16",
                      file.path().string(), stored, info.dtype_name));
    }
    Entry entry{file.raw(stored), *info.dtype, info.shape};
    entry.transposed = expected.module->stored_transposed && !expected.is_bias &&
                       entry.shape.size() == 2;
    if (entry.transposed) std::swap(entry.shape[0], entry.shape[1]);
    if (!entries_.emplace(name, std::move(entry)).second) {
      throw InputError(fmt::format(
          "{}: the tensor \"{}\" stands there twice, with and without a prefix; remove one",
          file.path().string(), name));
    }
  }

  void check_tied_copy(const Module& module) const {
    const auto copy = entries_.find(module.weight());
    const auto tied = entries_.find(*module.tied_to + ".weight");
    if (copy == entries_.end() || tied == entries_.end()) return;
    const std::span<const std::byte> a = copy->second.bytes, b = tied->second.bytes;
    if (a.size() != b.size() || std::memcmp(a.data(), b.data(), a.size()) != 0) {
      throw InputError(
          fmt::format("{}: \"{}\" differs from \"{}\", but tie_word_embeddings says that they are "
                      "one; set it to "
                      "false in config.json or remove the copy",
                      files_.front().path().string(), copy->first, tied->first));
    }
  }

  template <typename T>
  void read(std::string_view tensor, std::int64_t begin, std::int64_t end, std::span<T> out) const {
    const Entry& entry = entries_.find(tensor)->second;
    const std::int64_t cols = entry.shape.size() == 2 ? entry.shape[1] : 1;
    check_row_range(tensor, begin, end, entry.shape[0], cols, out.size());
    if (entry.transposed) {
      read_transposed(entry, begin, end, out);
    } else {
      read_elements(entry, begin * cols, out);
    }
  }

  std::vector<SafetensorsFile> files_;
  std::map<std::string, Entry, std::less<>> entries_;
};

}  // namespace

std::unique_ptr<const WeightSource> safetensors_source(std::vector<SafetensorsFile> files,
                                                       const std::vector<Module>& modules) {
  return std::make_unique<SafetensorsSource>(std::move(files), modules);
}

}  // namespace shardcheck
