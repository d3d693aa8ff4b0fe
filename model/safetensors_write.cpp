// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <nlohmann/json.hpp>
#include <set>
#include <stdexcept>
#include <system_error>

#include "model/error.hpp"
#include "model/safetensors.hpp"

namespace shardcheck {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t kDataAlignment = 64;

/// Removes the temporary file unless it was renamed into place.
class TemporaryFile {
 public:
  explicit TemporaryFile(const fs::path& target)
      : target_(target), path_(target.string() + fmt::format(".{}.partial", ::getpid())) {}
  ~TemporaryFile() {
    std::error_code ignored;
    if (!done_) fs::remove(path_, ignored);
  }
  TemporaryFile(const TemporaryFile&) = delete;
  TemporaryFile& operator=(const TemporaryFile&) = delete;
  const fs::path& path() const { return path_; }
  void rename_into_place() {
    fs::rename(path_, target_);
    done_ = true;
  }

 private:
  fs::path target_, path_;
  bool done_ = false;
};

std::string header_text(const std::vector<const std::pair<std::string, HostTensor>*>& order,
                        const std::map<std::string, std::string>& metadata) {
  nlohmann::ordered_json header = nlohmann::ordered_json::object();
  if (!metadata.empty()) header["__metadata__"] = metadata;
  std::size_t offset = 0;
  for (const auto* entry : order) {
    const auto& [name, tensor] = *entry;
    const std::size_t end = offset + tensor.bytes();
    header[name] = {{"dtype", info(tensor.dtype()).safetensors},
                    {"shape", tensor.shape()},
                    {"data_offsets", {offset, end}}};
    offset = end;
  }
  std::string text = header.dump();
  while ((text.size() + sizeof(std::uint64_t)) % kDataAlignment != 0) text += ' ';
  return text;
}

}  // namespace

void write_safetensors(const fs::path& file,
                       std::span<const std::pair<std::string, HostTensor>> tensors,
                       const std::map<std::string, std::string>& metadata) {
  std::vector<const std::pair<std::string, HostTensor>*> order;
  std::set<std::string_view> names;
  for (const auto& entry : tensors) {
    if (entry.first == "__metadata__" || !names.insert(entry.first).second) {
      throw std::logic_error(fmt::format("{}: the tensor name \"{}\" can't be written twice",
                                         file.string(), entry.first));
    }
    order.push_back(&entry);
  }
  std::stable_sort(order.begin(), order.end(), [](const auto* a, const auto* b) {
    return element_size(a->second.dtype()) > element_size(b->second.dtype());
  });

  const std::string header = header_text(order, metadata);
  const std::uint64_t length = header.size();
  TemporaryFile temporary(file);
  try {
    std::ofstream stream;
    stream.exceptions(std::ios::failbit | std::ios::badbit);
    stream.open(temporary.path(), std::ios::binary | std::ios::trunc);
    stream.write(reinterpret_cast<const char*>(&length), sizeof(length));
    stream.write(header.data(), static_cast<std::streamsize>(header.size()));
    for (const auto* entry : order) {
      const HostTensor& tensor = entry->second;
      stream.write(reinterpret_cast<const char*>(tensor.data()),
                   static_cast<std::streamsize>(tensor.bytes()));
    }
    stream.close();
    temporary.rename_into_place();
  } catch (const std::system_error& error) {
    throw InputError(fmt::format(
        "{}: the file can't be written ({}); check the folder, its permissions and the space left",
        file.string(), error.code().message()));
  }
}

}  // namespace shardcheck
