// SPDX-License-Identifier: Apache-2.0
#include "model/safetensors.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <nlohmann/json.hpp>

#include "model/error.hpp"
#include "model/json_text.hpp"
#include "model/modules.hpp"
#include "model/shipped.hpp"

namespace shardcheck {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

static_assert(std::endian::native == std::endian::little,
              "files are little-endian and read in place");

constexpr std::size_t kLengthBytes = 8;
constexpr std::uint64_t kMaxHeader = 100'000'000;

struct StoredType {
  std::string_view name;
  std::size_t bytes;
};

// Types that a file may hold beside those of DType, so that buffers in them can be skipped.
constexpr std::array<StoredType, 9> kOtherTypes = {{{"BOOL", 1},
                                                    {"U8", 1},
                                                    {"I8", 1},
                                                    {"F8_E5M2", 1},
                                                    {"F8_E4M3", 1},
                                                    {"I16", 2},
                                                    {"U16", 2},
                                                    {"I32", 4},
                                                    {"U32", 4}}};

constexpr std::array<DType, 6> kComputableTypes = {DType::f64,  DType::f32, DType::f16,
                                                   DType::bf16, DType::i64, DType::u64};

[[noreturn]] void fail(const fs::path& file, const std::string& what) {
  throw InputError(
      fmt::format("{}: {}; the file is damaged or not a safetensors file, fetch or write it again",
                  file.string(), what));
}

/// Sets dtype and name; returns bytes per element, 0 for an unknown type.
std::size_t set_dtype(const std::string& word, SafetensorsInfo& tensor) {
  tensor.dtype_name = word;
  for (const DType dtype : kComputableTypes) {
    if (info(dtype).safetensors == word) {
      tensor.dtype = dtype;
      return element_size(dtype);
    }
  }
  for (const StoredType& type : kOtherTypes) {
    if (type.name == word) return type.bytes;
  }
  return 0;
}

SafetensorsInfo parse_tensor(const fs::path& file, const std::string& name, const json& record) {
  const auto field = [&](const char* key) -> const json& {
    const auto it = record.is_object() ? record.find(key) : record.end();
    if (it == record.end()) fail(file, fmt::format("tensor \"{}\" has no \"{}\"", name, key));
    return *it;
  };
  SafetensorsInfo tensor;
  const json& dtype = field("dtype");
  const std::size_t element = dtype.is_string() ? set_dtype(dtype.get<std::string>(), tensor) : 0;
  if (element == 0)
    fail(file, fmt::format("tensor \"{}\" has the unknown dtype {}", name, quoted(dtype)));

  const json& shape = field("shape");
  if (!shape.is_array())
    fail(file, fmt::format("tensor \"{}\" has the shape {}", name, quoted(shape)));
  std::int64_t bytes = static_cast<std::int64_t>(element);
  for (const json& extent : shape) {
    std::int64_t n = 0;
    if (!extent.is_number_unsigned() || extent.get<std::uint64_t>() > INT64_MAX ||
        (n = extent.get<std::int64_t>(), __builtin_mul_overflow(bytes, n, &bytes))) {
      fail(file, fmt::format("tensor \"{}\" has the shape {}, which no file can hold", name,
                             quoted(shape)));
    }
    tensor.shape.push_back(n);
  }

  const json& offsets = field("data_offsets");
  if (!offsets.is_array() || offsets.size() != 2 || !offsets[0].is_number_unsigned() ||
      !offsets[1].is_number_unsigned()) {
    fail(file, fmt::format("tensor \"{}\" has the offsets {}", name, quoted(offsets)));
  }
  const auto begin = offsets[0].get<std::uint64_t>();
  const auto end = offsets[1].get<std::uint64_t>();
  if (begin > end || end - begin != static_cast<std::uint64_t>(bytes)) {
    fail(file,
         fmt::format("tensor \"{}\" of dtype {} and shape {} needs {} bytes, its offsets are {}",
                     name, tensor.dtype_name, quoted(shape), bytes, quoted(offsets)));
  }
  tensor.begin = begin;
  tensor.end = end;
  return tensor;
}

/// The tensors tile the data exactly: no overlap, no hole, nothing behind the last one.
void check_tiling(const fs::path& file,
                  const std::map<std::string, SafetensorsInfo, std::less<>>& tensors,
                  std::size_t data_bytes) {
  std::vector<std::pair<std::string_view, const SafetensorsInfo*>> by_offset;
  for (const auto& [name, tensor] : tensors) by_offset.emplace_back(name, &tensor);
  std::sort(by_offset.begin(), by_offset.end(), [](const auto& a, const auto& b) {
    return std::pair(a.second->begin, a.second->end) < std::pair(b.second->begin, b.second->end);
  });
  std::size_t expected = 0;
  for (const auto& [name, tensor] : by_offset) {
    if (tensor->begin != expected) {
      fail(file,
           fmt::format("tensor \"{}\" begins at byte {} of the data, the one before it ends at {}",
                       name, tensor->begin, expected));
    }
    expected = tensor->end;
    if (expected > data_bytes) {
      fail(file, fmt::format("tensor \"{}\" ends at byte {} of {} bytes of data", name, expected,
                             data_bytes));
    }
  }
  if (expected != data_bytes) {
    fail(file, fmt::format("the tensors end at byte {} of {} bytes of data", expected, data_bytes));
  }
}

/// File names of an index, each a plain name in its folder. weight_map: tensor name -> file name.
std::map<std::string, std::string> read_index(const fs::path& index) {
  const json document = parse_json(read_text(index), index.string());
  const auto it = document.is_object() ? document.find("weight_map") : document.end();
  if (it == document.end() || !it->is_object()) {
    throw InputError(
        fmt::format("{}: there is no object \"weight_map\"; fetch the file again", index.string()));
  }
  std::map<std::string, std::string> weight_map;
  for (const auto& [tensor, file] : it->items()) {
    const fs::path name = file.is_string() ? fs::path(file.get<std::string>()) : fs::path();
    if (name.empty() || name != name.filename() || name == "..") {
      throw InputError(fmt::format(
          "{}: \"{}\" is in {}, which must be the name of a file beside the index; correct it",
          index.string(), tensor, quoted(file)));
    }
    weight_map[tensor] = name.string();
  }
  return weight_map;
}

std::vector<SafetensorsFile> open_indexed(const fs::path& folder, const fs::path& index) {
  const std::map<std::string, std::string> weight_map = read_index(index);
  std::map<std::string, std::size_t> position;
  std::vector<SafetensorsFile> files;
  std::map<std::string, std::string> holder;
  for (const auto& [tensor, file] : weight_map) {
    if (!position.try_emplace(file, files.size()).second) continue;
    files.push_back(SafetensorsFile::open(folder / file));
    for (const std::string& name : files.back().names()) {
      if (const auto [it, is_new] = holder.try_emplace(name, file); !is_new) {
        throw InputError(fmt::format("{}: the tensor \"{}\" is in {} and in {}; remove one of them",
                                     folder.string(), name, it->second, file));
      }
    }
  }
  for (const auto& [tensor, file] : weight_map) {
    if (!files[position.at(file)].contains(tensor)) {
      throw InputError(fmt::format(
          "{}: the index says that \"{}\" is in {}, which doesn't hold it; fetch both again",
          index.string(), tensor, file));
    }
  }
  return files;
}

}  // namespace

SafetensorsFile SafetensorsFile::open(const fs::path& file) {
  SafetensorsFile result;
  result.path_ = file;
  result.mapping_ = MappedFile::open(file);
  const std::span<const std::byte> bytes = result.mapping_->bytes();
  if (bytes.size() < kLengthBytes)
    fail(file, fmt::format("{} bytes are too few for a header", bytes.size()));
  std::uint64_t length = 0;
  std::memcpy(&length, bytes.data(), kLengthBytes);
  if (length > kMaxHeader || length > bytes.size() - kLengthBytes) {
    fail(file,
         fmt::format("the header is said to have {} bytes, the file has {}", length, bytes.size()));
  }
  result.data_begin_ = kLengthBytes + length;

  const std::string_view text(reinterpret_cast<const char*>(bytes.data()) + kLengthBytes, length);
  const json header = parse_json(text, file.string() + " (header)");
  if (!header.is_object()) fail(file, "the header is no JSON object");
  for (const auto& [name, record] : header.items()) {
    if (name != "__metadata__") {
      result.tensors_.emplace(name, parse_tensor(file, name, record));
      continue;
    }
    if (!record.is_object()) fail(file, "\"__metadata__\" is no object");
    for (const auto& [key, value] : record.items()) {
      if (!value.is_string())
        fail(file, fmt::format("\"__metadata__\" holds {} = {}, no string", key, quoted(value)));
      result.metadata_[key] = value.get<std::string>();
    }
  }
  check_tiling(file, result.tensors_, bytes.size() - result.data_begin_);
  return result;
}

std::vector<std::string> SafetensorsFile::names() const {
  std::vector<std::string> names;
  for (const auto& entry : tensors_) names.push_back(entry.first);
  return names;
}

const SafetensorsInfo& SafetensorsFile::info(std::string_view name) const {
  const auto it = tensors_.find(name);
  if (it == tensors_.end()) {
    throw InputError(
        fmt::format("{}: there is no tensor \"{}\" (nearest: \"{}\"); correct the name",
                    path_.string(), name, nearest_name(name, names())));
  }
  return it->second;
}

std::span<const std::byte> SafetensorsFile::raw(std::string_view name) const {
  const SafetensorsInfo& tensor = info(name);
  return mapping_->bytes().subspan(data_begin_ + tensor.begin, tensor.end - tensor.begin);
}

HostTensor SafetensorsFile::tensor(std::string_view name) const {
  const SafetensorsInfo& stored = info(name);
  if (!stored.dtype) {
    throw InputError(fmt::format(
        "{}: tensor \"{}\" has dtype {}; only F64, F32, F16, BF16, I64 and U64 can be used",
        path_.string(), name, stored.dtype_name));
  }
  const std::span<const std::byte> bytes = raw(name);
  const bool aligned = reinterpret_cast<std::uintptr_t>(bytes.data()) % element_size(*stored.dtype) ==
                       0;
  if (aligned)
    return HostTensor(*stored.dtype, stored.shape,
                      std::shared_ptr<const std::byte>(mapping_, bytes.data()));
  HostTensor copy(*stored.dtype, stored.shape);
  if (!bytes.empty()) std::memcpy(copy.mutable_data(), bytes.data(), bytes.size());
  return copy;
}

std::vector<SafetensorsFile> open_safetensors_folder(const fs::path& folder) {
  std::error_code error;
  if (fs::exists(folder / "model.safetensors", error))
    return {SafetensorsFile::open(folder / "model.safetensors")};
  const fs::path index = folder / "model.safetensors.index.json";
  if (fs::exists(index, error)) return open_indexed(folder, index);
  std::vector<fs::path> found;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder, error)) {
    if (entry.path().extension() == ".safetensors") found.push_back(entry.path());
  }
  if (found.empty()) return {};
  if (found.size() > 1) {
    throw InputError(fmt::format(
        "{}: there are {} .safetensors files and no model.safetensors.index.json that says "
        "which belong together; add the index",
        folder.string(), found.size()));
  }
  return {SafetensorsFile::open(found.front())};
}

}  // namespace shardcheck
