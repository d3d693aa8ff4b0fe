// SPDX-License-Identifier: Apache-2.0
#include "kernels/shared_module.hpp"

#include <dlfcn.h>
#include <elf.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <system_error>
#include <vector>

namespace shardcheck {
namespace {

std::vector<std::filesystem::path> module_folders() {
  std::vector<std::filesystem::path> folders;
  if (const char* const set = std::getenv("SHARDCHECK_MODULES")) {
    std::istringstream words(set);
    for (std::string folder; std::getline(words, folder, ':');) {
      if (!folder.empty()) folders.emplace_back(folder);
    }
  }
  std::error_code error;
  const std::filesystem::path program = std::filesystem::read_symlink("/proc/self/exe", error);
  if (!error) {
    const std::filesystem::path here = program.parent_path();
    folders.insert(folders.end(), {here, here / "modules", here.parent_path() / "modules",
                                   here.parent_path() / "lib" / "shardcheck"});
  }
  return folders;
}

/// False if the file ends before what would be mapped of it: touching that would end the process with a bus error, where
/// dlopen reports everything else that can be wrong.
bool is_whole(const std::filesystem::path& file) {
  std::error_code error;
  const std::uintmax_t bytes = std::filesystem::file_size(file, error);
  std::ifstream stream(file, std::ios::binary);
  Elf64_Ehdr header = {};
  if (error || !stream.read(reinterpret_cast<char*>(&header), sizeof header)) return true;
  if (std::memcmp(header.e_ident, ELFMAG, SELFMAG) != 0) return true;
  stream.seekg(static_cast<std::streamoff>(header.e_phoff));
  for (int i = 0; i < header.e_phnum; ++i) {
    Elf64_Phdr segment = {};
    if (!stream.read(reinterpret_cast<char*>(&segment), sizeof segment)) return false;
    if (segment.p_type == PT_LOAD && segment.p_offset + segment.p_filesz > bytes) return false;
  }
  return true;
}

}  // namespace

std::string module_file(const std::string& name) { return fmt::format("libshardcheck_{}.so", name); }

void* module_symbol(const std::string& name, const std::string& symbol, std::string& why) {
  std::vector<std::string> looked;
  for (const std::filesystem::path& folder : module_folders()) {
    const std::filesystem::path file = folder / module_file(name);
    std::error_code error;
    if (!std::filesystem::exists(file, error)) {
      looked.push_back(folder.string());
      continue;
    }
    if (!is_whole(file)) {
      why = fmt::format("{} is only a part of a module; build or copy it again", file.string());
      return nullptr;
    }
    // RTLD_LOCAL: a module brings its own copies of what it shares with the program, and must not meet another's.
    void* const module = dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL);
    void* const address = module == nullptr ? nullptr : dlsym(module, symbol.c_str());
    if (address == nullptr) why = dlerror();
    return address;
  }
  why = fmt::format("{} was not built or not installed; looked in {}", module_file(name), fmt::join(looked, ", "));
  return nullptr;
}

std::string other_build(const std::string& name, int version, int wanted) {
  return fmt::format("{} belongs to another build of shardcheck (version {}, not {})", module_file(name), version,
                     wanted);
}

}  // namespace shardcheck
