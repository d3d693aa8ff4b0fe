// SPDX-License-Identifier: Apache-2.0
// Files that come with shardcheck: found by name, so that a path is never needed for them.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

namespace shardcheck {

/// The folder that holds configs/, models/, plans/, links/, gpus/: $SHARDCHECK_SHARE, else
/// <executable>/../share/shardcheck when installed, else fixtures/ of the source tree that was built.
std::filesystem::path share_directory();

/// Names (file stems or folder names) in one of those folders, sorted.
std::vector<std::string> shipped_names(std::string_view folder);

/// A file as typed by the user, or the shipped one of that name: folder "plans", "links", "gpus".
/// Throws InputError with the nearest shipped name.
std::filesystem::path find_shipped(std::string_view folder, const std::string& file_or_name);

/// The file's text. Throws InputError if it can't be read.
std::string read_text(const std::filesystem::path& file);

/// Files fetched on request (fixtures/fetch): $SHARDCHECK_CACHE, else $XDG_CACHE_HOME/shardcheck, else
/// ~/.cache/shardcheck.
std::filesystem::path cache_directory();

}  // namespace shardcheck
