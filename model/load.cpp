// SPDX-License-Identifier: Apache-2.0
// From MODEL as the user types it to a Model: finding the files, then choosing config and weights.
#include <fmt/format.h>

#include <algorithm>
#include <system_error>
#include <utility>

#include "model/error.hpp"
#include "model/gguf.hpp"
#include "model/model.hpp"
#include "model/safetensors.hpp"
#include "model/shipped.hpp"
#include "model/sources.hpp"

namespace shardcheck {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kSmolLm2 = "smollm2";
constexpr std::string_view kSmolLm2File = "SmolLM2-135M-Instruct.Q4_1.gguf";

/// What a MODEL argument stands for: exactly one of `gguf` and `config` is set, `folder` where weights may lie.
struct Located {
  fs::path gguf, config, folder;
};

Located in_folder(const fs::path& folder) {
  std::error_code error;
  if (fs::exists(folder / "config.json", error)) return {{}, folder / "config.json", folder};
  std::vector<fs::path> found;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder, error)) {
    if (entry.path().extension() == ".gguf") found.push_back(entry.path());
  }
  if (found.size() == 1) return {found.front(), {}, {}};
  throw InputError(fmt::format(
      "{}: the folder holds {}; a model is a folder with a config.json, or with one .gguf file",
      folder.string(),
      found.empty() ? "neither config.json nor a .gguf file"
                    : fmt::format("{} .gguf files", found.size())));
}

Located in_file(const fs::path& file) {
  if (file.extension() == ".gguf") return {file, {}, {}};
  if (file.extension() == ".json") {
    const fs::path beside = file.has_parent_path() ? file.parent_path() : fs::path(".");
    return {{}, file, file.filename() == "config.json" ? beside : fs::path()};
  }
  throw InputError(fmt::format(
      "{}: a model is a folder, a .gguf file or a config.json; give one of them (the folder, for a "
      ".safetensors file)",
      file.string()));
}

Located by_name(const std::string& name) {
  if (name == kSmolLm2) {
    const fs::path file = cache_directory() / kSmolLm2File;
    std::error_code error;
    if (fs::exists(file, error)) return {file, {}, {}};
    throw InputError(
        fmt::format("smollm2: {} isn't there yet; run fixtures/fetch smollm2", file.string()));
  }
  std::vector<std::string> known{std::string(kSmolLm2)};
  for (const std::string_view shelf : {"models", "configs"}) {
    for (const std::string& shipped : shipped_names(shelf)) {
      if (shipped == name) return in_folder(share_directory() / shelf / name);
      known.push_back(shipped);
    }
  }
  throw InputError(
      fmt::format("{}: there is no such file or folder, and no shipped model of this name "
                  "(nearest: \"{}\"); give "
                  "a path or a shipped name",
                  name, nearest_name(name, known)));
}

Located locate(const std::string& model) {
  std::error_code error;
  if (fs::is_directory(model, error)) return in_folder(model);
  if (fs::exists(model, error)) return in_file(model);
  return by_name(model);
}

/// The files' tensors are checked against the whole depth, so that `--layers` needs no file of its own.
ConfigOptions whole_depth(ConfigOptions options) {
  options.num_layers.reset();
  return options;
}

Model load_gguf(const fs::path& path, const ModelOptions& options, const std::string& name) {
  const GgufFile file = GgufFile::open(path);
  Config config = gguf_config(file, options.config);
  if (name == kSmolLm2) config.name = name;
  if (options.random_seed) {
    auto source = synthetic_source(*options.random_seed, modules(config));
    return Model(std::move(config), std::move(source));
  }
  if (options.shapes_only && !options.tensor_types) return Model(std::move(config), nullptr);
  const Config whole = gguf_config(file, whole_depth(options.config));
  auto source = gguf_source(file, whole, modules(whole));
  return Model(std::move(config), std::move(source));
}

Model load_folder(const Located& located, const ModelOptions& options) {
  Config config = read_config(located.config, options.config);
  if (options.random_seed) {
    auto source = synthetic_source(*options.random_seed, modules(config));
    return Model(std::move(config), std::move(source));
  }
  if (options.shapes_only) return Model(std::move(config), nullptr);
  std::vector<SafetensorsFile> files;
  if (!located.folder.empty()) files = open_safetensors_folder(located.folder);
  if (files.empty()) {
    throw InputError(
        fmt::format("{}: there are no weights (*.safetensors) beside this config; add them, or use "
                    "--random SEED "
                    "for synthetic ones",
                    located.config.string()));
  }
  const Config whole = read_config(located.config, whole_depth(options.config));
  auto source = safetensors_source(std::move(files), modules(whole));
  return Model(std::move(config), std::move(source));
}

}  // namespace

Model load_model(const std::string& model, const ModelOptions& options) {
  const Located located = locate(model);
  return located.gguf.empty() ? load_folder(located, options)
                              : load_gguf(located.gguf, options, model);
}

}  // namespace shardcheck
