// SPDX-License-Identifier: Apache-2.0
// A folder that looks like the bundle: its programs are scripts that a test writes.
#pragma once

#include <stdlib.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <system_error>

namespace shardcheck::bundle {

class BundleFolder {
 public:
  BundleFolder() {
    std::string name = (std::filesystem::temp_directory_path() / "bundle-test.XXXXXX").string();
    path_ = mkdtemp(name.data());
    std::filesystem::create_directories(path_ / "bin");
    std::filesystem::create_directories(path_ / "work");
  }
  ~BundleFolder() {
    std::error_code error;
    std::filesystem::remove_all(path_, error);
  }
  BundleFolder(const BundleFolder&) = delete;
  BundleFolder& operator=(const BundleFolder&) = delete;

  const std::filesystem::path& path() const { return path_; }
  std::filesystem::path write(const std::filesystem::path& name, const std::string& text) const {
    std::filesystem::create_directories((path_ / name).parent_path());
    std::ofstream(path_ / name) << text;
    return path_ / name;
  }
  /// bin/`name`, a shell script.
  void program(const std::string& name, const std::string& body) const {
    const std::filesystem::path file = write("bin/" + name, "#!/bin/sh\n" + body + "\n");
    std::filesystem::permissions(file, std::filesystem::perms::owner_all);
  }

 private:
  std::filesystem::path path_;
};

}  // namespace shardcheck::bundle
