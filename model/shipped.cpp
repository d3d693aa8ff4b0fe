// SPDX-License-Identifier: Apache-2.0
#include "model/shipped.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <system_error>

#include "model/error.hpp"
#include "model/modules.hpp"

namespace shardcheck {
namespace {

namespace fs = std::filesystem;

/// The variable's value; nothing if unset or empty.
std::string environment(const char* variable) {
  const char* value = std::getenv(variable);
  return value == nullptr ? "" : value;
}

bool is_folder(const fs::path& path) {
  std::error_code error;
  return fs::is_directory(path, error);
}

std::string entry_name(const fs::directory_entry& entry) {
  return entry.is_directory() ? entry.path().filename().string() : entry.path().stem().string();
}

}  // namespace

fs::path share_directory() {
  if (const std::string given = environment("SHARDCHECK_SHARE"); !given.empty()) return given;
  std::error_code error;
  const fs::path program = fs::read_symlink("/proc/self/exe", error);
  if (!error) {
    const fs::path installed = program.parent_path().parent_path() / "share" / "shardcheck";
    if (is_folder(installed)) return installed;
  }
#ifdef SHARDCHECK_SOURCE_FIXTURES
  if (is_folder(SHARDCHECK_SOURCE_FIXTURES)) return SHARDCHECK_SOURCE_FIXTURES;
#endif
  throw InputError(
      "the folder of shipped plans, links and models isn't beside the program; set "
      "SHARDCHECK_SHARE to it");
}

std::vector<std::string> shipped_names(std::string_view folder) {
  std::vector<std::string> names;
  std::error_code error;
  for (const fs::directory_entry& entry : fs::directory_iterator(share_directory() / folder, error)) {
    names.push_back(entry_name(entry));
  }
  std::sort(names.begin(), names.end());
  names.erase(std::unique(names.begin(), names.end()), names.end());
  return names;
}

fs::path find_shipped(std::string_view folder, const std::string& file_or_name) {
  std::error_code error;
  if (fs::is_regular_file(file_or_name, error)) return file_or_name;
  for (const fs::directory_entry& entry : fs::directory_iterator(share_directory() / folder, error)) {
    if (entry_name(entry) == file_or_name || entry.path().filename() == file_or_name)
      return entry.path();
  }
  const std::vector<std::string> names = shipped_names(folder);
  const std::string hint = names.empty() ? ""
                                         : fmt::format(" (nearest shipped name: \"{}\")",
                                                       nearest_name(file_or_name, names));
  throw InputError(fmt::format(
      "{}: there is no such file, and nothing of this name in {}{}; give a path or a shipped name",
      file_or_name, folder, hint));
}

std::string read_text(const fs::path& file) {
  std::error_code error;
  if (fs::is_directory(file, error))
    throw InputError(fmt::format("{}: this is a folder; give a file", file.string()));
  const auto unreadable = [&] {
    return InputError(fmt::format("{}: the file can't be read; check the path and its permissions",
                                  file.string()));
  };
  try {
    std::ifstream stream(file, std::ios::binary);
    std::string text{std::istreambuf_iterator<char>(stream), std::istreambuf_iterator<char>()};
    if (stream) return text;
  } catch (const std::ios_base::failure&) {  // the library's own, where a read fails
    throw unreadable();
  }
  throw unreadable();
}

fs::path cache_directory() {
  if (const std::string given = environment("SHARDCHECK_CACHE"); !given.empty()) return given;
  if (const std::string xdg = environment("XDG_CACHE_HOME"); !xdg.empty())
    return fs::path(xdg) / "shardcheck";
  if (const std::string home = environment("HOME"); !home.empty())
    return fs::path(home) / ".cache" / "shardcheck";
  throw InputError("no cache folder is known; set SHARDCHECK_CACHE or HOME");
}

}  // namespace shardcheck
