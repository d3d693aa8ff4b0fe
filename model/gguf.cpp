// SPDX-License-Identifier: Apache-2.0
#include "model/gguf.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <optional>
#include <utility>

#include "model/error.hpp"
#include "model/host_tensor.hpp"

namespace shardcheck {
namespace {

static_assert(std::endian::native == std::endian::little,
              "files are little-endian and read in place");

constexpr std::uint64_t kDefaultAlignment = 32;
constexpr std::uint64_t kMaxAlignment = 1u << 20;
constexpr std::uint32_t kMaxDimensions = 4;
constexpr int kMaxListDepth = 4;

// Numbers of the value types in the file.
enum class ValueType : std::uint32_t {
  u8,
  i8,
  u16,
  i16,
  u32,
  i32,
  f32,
  boolean,
  string,
  array,
  u64,
  i64,
  f64
};

std::size_t fixed_size(ValueType type) {
  switch (type) {
    case ValueType::u8:
    case ValueType::i8:
    case ValueType::boolean:
      return 1;
    case ValueType::u16:
    case ValueType::i16:
      return 2;
    case ValueType::u32:
    case ValueType::i32:
    case ValueType::f32:
      return 4;
    case ValueType::u64:
    case ValueType::i64:
    case ValueType::f64:
      return 8;
    default:
      return 0;
  }
}

/// Reads forward through the header; every step is checked against the end of the file.
class Reader {
 public:
  Reader(const std::filesystem::path& file, std::span<const std::byte> bytes)
      : file_(file), bytes_(bytes) {}

  std::size_t position() const { return position_; }
  std::size_t left() const { return bytes_.size() - position_; }

  [[noreturn]] void fail(const std::string& what) const {
    throw InputError(fmt::format(
        "{}: {}, before byte {}; the file is damaged or not a GGUF file, fetch it again",
        file_.string(), what, position_));
  }

  const std::byte* take(std::uint64_t count, std::string_view what) {
    if (count > left())
      fail(fmt::format("{} of {} bytes doesn't fit the file's {} bytes", what, count, bytes_.size()));
    const std::byte* from = bytes_.data() + position_;
    position_ += static_cast<std::size_t>(count);
    return from;
  }

  template <typename T>
  T scalar(std::string_view what) {
    T value;
    std::memcpy(&value, take(sizeof(T), what), sizeof(T));
    return value;
  }

  std::string text(std::string_view what) {
    const auto length = scalar<std::uint64_t>(what);
    const std::byte* from = take(length, what);
    return {reinterpret_cast<const char*>(from), static_cast<std::size_t>(length)};
  }

  ValueType value_type() {
    const auto type = scalar<std::uint32_t>("a value type");
    if (type > static_cast<std::uint32_t>(ValueType::f64))
      fail(fmt::format("there is no value type {}", type));
    return static_cast<ValueType>(type);
  }

  GgufValue value(ValueType type) {
    constexpr std::string_view kWhat = "a metadata value";
    switch (type) {
      case ValueType::u8:
        return std::uint64_t{scalar<std::uint8_t>(kWhat)};
      case ValueType::i8:
        return std::int64_t{scalar<std::int8_t>(kWhat)};
      case ValueType::u16:
        return std::uint64_t{scalar<std::uint16_t>(kWhat)};
      case ValueType::i16:
        return std::int64_t{scalar<std::int16_t>(kWhat)};
      case ValueType::u32:
        return std::uint64_t{scalar<std::uint32_t>(kWhat)};
      case ValueType::i32:
        return std::int64_t{scalar<std::int32_t>(kWhat)};
      case ValueType::u64:
        return std::uint64_t{scalar<std::uint64_t>(kWhat)};
      case ValueType::i64:
        return std::int64_t{scalar<std::int64_t>(kWhat)};
      case ValueType::f32:
        return double{scalar<float>(kWhat)};
      case ValueType::f64:
        return scalar<double>(kWhat);
      case ValueType::boolean:
        return boolean();
      case ValueType::string:
        return text(kWhat);
      case ValueType::array:
        return list(0);
    }
    fail("a value of no known type");
  }

 private:
  bool boolean() {
    const auto byte = scalar<std::uint8_t>("a boolean");
    if (byte > 1) fail(fmt::format("a boolean is {}", byte));
    return byte == 1;
  }

  /// Steps over a list: its elements are checked to lie in the file, and not kept.
  GgufArray list(int depth) {
    if (depth == kMaxListDepth) fail("lists are nested too deeply");
    const ValueType type = value_type();
    const auto count = scalar<std::uint64_t>("a list's length");
    if (const std::size_t size = fixed_size(type); size > 0) {
      if (count > left() / size)
        fail(fmt::format("a list of {} elements doesn't fit the file", count));
      take(count * size, "a list");
      return {count};
    }
    for (std::uint64_t i = 0; i < count; ++i) {
      if (type == ValueType::array) {
        list(depth + 1);
      } else {
        take(scalar<std::uint64_t>("a string's length"), "a string");
      }
    }
    return {count};
  }

  const std::filesystem::path& file_;
  std::span<const std::byte> bytes_;
  std::size_t position_ = 0;
};

std::optional<DType> dtype_of(std::uint32_t ggml_type) {
  for (const DType dtype : {DType::f64, DType::f32, DType::f16, DType::bf16, DType::q8_0,
                            DType::q4_0, DType::q4_1, DType::q4_k, DType::q6_k}) {
    if (info(dtype).ggml_type == static_cast<std::int64_t>(ggml_type)) return dtype;
  }
  return std::nullopt;
}

/// One tensor record; `begin` is still relative to the start of the data.
GgufTensor read_tensor(Reader& reader, const std::string& name) {
  GgufTensor tensor;
  const auto dimensions = reader.scalar<std::uint32_t>("a tensor's dimensions");
  if (dimensions < 1 || dimensions > kMaxDimensions) {
    reader.fail(fmt::format("tensor \"{}\" has {} dimensions", name, dimensions));
  }
  std::int64_t elements = 1;
  for (std::uint32_t i = 0; i < dimensions; ++i) {
    const auto extent = reader.scalar<std::uint64_t>("a tensor's shape");
    if (extent > INT64_MAX ||
        __builtin_mul_overflow(elements, static_cast<std::int64_t>(extent), &elements)) {
      reader.fail(fmt::format("tensor \"{}\" has an extent of {}", name, extent));
    }
    tensor.shape.push_back(static_cast<std::int64_t>(extent));
  }
  const auto type = reader.scalar<std::uint32_t>("a tensor's type");
  const std::optional<DType> dtype = dtype_of(type);
  if (!dtype) {
    reader.fail(fmt::format(
        "tensor \"{}\" has ggml type {}; only F64, F32, F16, BF16, Q8_0, Q4_0, Q4_1, Q4_K and Q6_K "
        "can be read",
        name, type));
  }
  tensor.dtype = *dtype;
  const DTypeInfo& facts = info(*dtype);
  if (tensor.shape[0] % facts.block_elements != 0) {
    reader.fail(fmt::format("tensor \"{}\" has rows of {} elements, {} needs a multiple of {}",
                            name, tensor.shape[0], facts.name, facts.block_elements));
  }
  std::int64_t bytes = 0;
  if (__builtin_mul_overflow(elements / facts.block_elements,
                             static_cast<std::int64_t>(facts.block_bytes), &bytes)) {
    reader.fail(fmt::format("tensor \"{}\" is larger than any file", name));
  }
  tensor.bytes = static_cast<std::size_t>(bytes);
  tensor.begin = static_cast<std::size_t>(reader.scalar<std::uint64_t>("a tensor's offset"));
  std::reverse(tensor.shape.begin(), tensor.shape.end());
  return tensor;
}

std::uint64_t alignment_of(const std::map<std::string, GgufValue, std::less<>>& metadata,
                           const Reader& reader) {
  const auto it = metadata.find("general.alignment");
  if (it == metadata.end()) return kDefaultAlignment;
  const auto* value = std::get_if<std::uint64_t>(&it->second);
  if (value == nullptr || *value == 0 || *value > kMaxAlignment || !std::has_single_bit(*value)) {
    reader.fail("general.alignment must be a power of two up to 2^20");
  }
  return *value;
}

/// Moves offsets from the data's to the file's start and checks them.
void place_tensors(std::map<std::string, GgufTensor, std::less<>>& tensors, std::uint64_t alignment,
                   std::size_t file_bytes, const Reader& reader) {
  const std::size_t data_begin = (reader.position() + alignment - 1) / alignment * alignment;
  std::vector<std::pair<const GgufTensor*, std::string_view>> order;
  for (auto& [name, tensor] : tensors) {
    const bool inside = data_begin <= file_bytes && tensor.begin <= file_bytes - data_begin &&
                        tensor.bytes <= file_bytes - data_begin - tensor.begin;
    if (!inside || tensor.begin % alignment != 0) {
      reader.fail(fmt::format(
          "tensor \"{}\" of shape {} has {} bytes at offset {} of the data, which must lie in the "
          "file of {} bytes at a multiple of {}",
          name, to_string(tensor.shape), tensor.bytes, tensor.begin, file_bytes, alignment));
    }
    tensor.begin += data_begin;
    if (tensor.bytes > 0) order.emplace_back(&tensor, name);
  }
  std::sort(order.begin(), order.end(),
            [](const auto& a, const auto& b) { return a.first->begin < b.first->begin; });
  for (std::size_t i = 1; i < order.size(); ++i) {
    if (order[i].first->begin < order[i - 1].first->begin + order[i - 1].first->bytes) {
      reader.fail(fmt::format("the tensors \"{}\" and \"{}\" overlap", order[i - 1].second,
                              order[i].second));
    }
  }
}

}  // namespace

GgufFile GgufFile::open(const std::filesystem::path& file) {
  GgufFile result;
  result.path_ = file;
  result.mapping_ = MappedFile::open(file);
  const std::span<const std::byte> bytes = result.mapping_->bytes();
  Reader reader(file, bytes);
  if (std::memcmp(reader.take(4, "the magic"), "GGUF", 4) != 0)
    reader.fail("the file doesn't begin with GGUF");
  const auto version = reader.scalar<std::uint32_t>("the version");
  if (version != 2 && version != 3)
    reader.fail(fmt::format("version {} isn't 2 or 3 (or the file is big-endian)", version));
  const auto tensor_count = reader.scalar<std::uint64_t>("the number of tensors");
  const auto value_count = reader.scalar<std::uint64_t>("the number of metadata values");

  for (std::uint64_t i = 0; i < value_count; ++i) {
    const std::string key = reader.text("a metadata key");
    const ValueType type = reader.value_type();
    if (!result.metadata_.emplace(key, reader.value(type)).second) {
      reader.fail(fmt::format("the key \"{}\" stands twice", key));
    }
  }
  for (std::uint64_t i = 0; i < tensor_count; ++i) {
    const std::string name = reader.text("a tensor's name");
    if (!result.tensors_.emplace(name, read_tensor(reader, name)).second) {
      reader.fail(fmt::format("the tensor \"{}\" stands twice", name));
    }
  }
  place_tensors(result.tensors_, alignment_of(result.metadata_, reader), bytes.size(), reader);
  return result;
}

}  // namespace shardcheck
