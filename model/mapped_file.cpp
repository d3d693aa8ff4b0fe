// SPDX-License-Identifier: Apache-2.0
#include "model/mapped_file.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <string>

#include "model/error.hpp"

namespace shardcheck {
namespace {

/// Closes the descriptor; the mapping doesn't need it.
class Descriptor {
 public:
  // O_NONBLOCK: a pipe given as a file is refused below instead of being waited for.
  explicit Descriptor(const std::filesystem::path& file)
      : number_(::open(file.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK)) {}
  ~Descriptor() {
    if (number_ >= 0) ::close(number_);
  }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  int number() const { return number_; }

 private:
  int number_;
};

[[noreturn]] void fail(const std::filesystem::path& file, std::string_view what) {
  throw InputError(fmt::format(
      "{}: the file can't be read ({}); check the path and its permissions", file.string(), what));
}

}  // namespace

std::shared_ptr<const MappedFile> MappedFile::open(const std::filesystem::path& file) {
  const Descriptor descriptor(file);
  struct stat status {};
  if (descriptor.number() < 0 || ::fstat(descriptor.number(), &status) != 0)
    fail(file, std::strerror(errno));
  if (!S_ISREG(status.st_mode)) fail(file, "it isn't a regular file");
  const auto size = static_cast<std::size_t>(status.st_size);
  const std::byte* data = nullptr;
  if (size > 0) {
    void* memory = ::mmap(nullptr, size, PROT_READ, MAP_PRIVATE, descriptor.number(), 0);
    if (memory == MAP_FAILED) fail(file, std::strerror(errno));
    data = static_cast<const std::byte*>(memory);
  }
  return std::shared_ptr<const MappedFile>(new MappedFile(data, size));
}

MappedFile::~MappedFile() {
  if (data_ != nullptr) ::munmap(const_cast<std::byte*>(data_), size_);
}

}  // namespace shardcheck
