// SPDX-License-Identifier: Apache-2.0
#include "kernels/shared_module.hpp"

#include <dlfcn.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cstdlib>
#include <filesystem>
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
    // RTLD_LOCAL: a module brings its own copies of what it shares with the program, and must not meet another's.
    void* const module = dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL);
    void* const address = module == nullptr ? nullptr : dlsym(module, symbol.c_str());
    if (address == nullptr) why = dlerror();
    return address;
  }
  why = fmt::format("{} was not built or not installed; looked in {}", module_file(name), fmt::join(looked, ", "));
  return nullptr;
}

}  // namespace shardcheck
