// SPDX-License-Identifier: Apache-2.0
#include "harness/cli/arguments.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <charconv>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "model/error.hpp"

namespace shardcheck::cli {
namespace {

std::optional<std::int64_t> integer(const std::string& word) {
  std::int64_t value = 0;
  const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), value);
  if (error != std::errc() || end != word.data() + word.size()) return std::nullopt;
  return value;
}

constexpr std::int64_t kMostRanks = 1024;

int group_size(const std::string& word, const std::string& option) {
  const std::optional<std::int64_t> size = integer(word);
  if (!size || *size < 1 || *size > kMostRanks) {
    throw InputError(fmt::format("{}: \"{}\" is no group size; use a whole number from 1 to {}",
                                 option, word, kMostRanks));
  }
  return static_cast<int>(*size);
}

/// "x=2,y=4" in any order of the axes; ranks are counted in the plan's.
Mesh mesh_of(const Plan& chosen, const std::string& option, const std::string& text) {
  Mesh parsed;
  for (const std::string& part : split({text})) {
    const auto equals = part.find('=');
    if (equals == std::string::npos || equals == 0) {
      throw InputError(fmt::format("{}: \"{}\" is no axis=size; write for example {}=2", option,
                                   part, chosen.mesh[0]));
    }
    const std::string axis = part.substr(0, equals);
    if (parsed.axis_index(axis) >= 0) {
      throw InputError(fmt::format("{}: the axis {} stands twice in {}", option, axis, text));
    }
    parsed.axes.push_back({axis, group_size(part.substr(equals + 1), option)});
  }
  Mesh ordered;
  for (const std::string& axis : chosen.mesh) {
    const int at = parsed.axis_index(axis);
    if (at < 0) {
      throw InputError(fmt::format("{} {}: the plan {} has the axes {}; give each a size", option,
                                   text, chosen.name, fmt::join(chosen.mesh, ", ")));
    }
    ordered.axes.push_back(parsed.axes[static_cast<std::size_t>(at)]);
  }
  if (ordered.axes.size() != parsed.axes.size()) {
    throw InputError(fmt::format("{} {}: the plan {} has only the axes {}", option, text,
                                 chosen.name, fmt::join(chosen.mesh, ", ")));
  }
  std::int64_t ranks = 1;
  for (const Mesh::Axis& axis : ordered.axes) {
    ranks *= axis.size;
    if (ranks > kMostRanks)
      throw InputError(fmt::format("{} {}: more than {} ranks", option, text, kMostRanks));
  }
  return ordered;
}

}  // namespace

void ModelArguments::add_to(CLI::App& app) {
  app.add_option(
         "MODEL", positional,
         "a folder with config.json and safetensors, a .gguf, a config.json, a shipped model's "
         "or config's name, or smollm2")
      ->type_name("");
  app.add_option("--model", option, "the same, as an option")->type_name("MODEL");
  app.add_option("--random", random,
                 "synthetic weights from this seed, in place of the model's own if it has any")
      ->type_name("SEED");
  app.add_option("--layers", layers, "keep only the first N layers")->type_name("N");
  app.add_option("--ignore-key", ignored_keys, "go on without this key of config.json (repeatable)")
      ->type_name("KEY");
}

std::string ModelArguments::name() const {
  if (positional.empty() == option.empty()) {
    throw InputError(option.empty()
                         ? "no model given; name one first or with --model, such as tiny-llama"
                         : "the model is given twice, first and with --model; keep one");
  }
  return option.empty() ? positional : option;
}

Model ModelArguments::load(bool shapes_only) const {
  ModelOptions options;
  options.random_seed = random;
  options.shapes_only = options.tensor_types = shapes_only;
  options.config.ignored_keys = ignored_keys;
  options.config.num_layers = layers;
  return load_model(name(), options);
}

std::string ModelArguments::repro() const {
  std::string text = name();
  if (random) text += fmt::format(" --random {}", *random);
  if (layers) text += fmt::format(" --layers {}", *layers);
  for (const std::string& key : ignored_keys) text += " --ignore-key " + key;
  return text;
}

void PlanArguments::add_to(CLI::App& app, const std::string& default_tp) {
  default_tp_ = default_tp;
  app.add_option("--plan", plan, "a plan file or a shipped plan's name")
      ->type_name("PLAN")
      ->capture_default_str();
  app.add_option("--tp", tp,
                 "sizes of the plan's one axis: how many ranks (default " + default_tp + ")")
      ->type_name("LIST");
  app.add_option("--mesh", mesh,
                 "sizes of all axes of a plan, such as x=2,y=4 (repeatable: one mesh each)")
      ->type_name("AXES");
}

std::vector<Mesh> PlanArguments::parse(const Plan& chosen, const std::string& option,
                                       const std::vector<std::string>& words) {
  std::vector<Mesh> meshes;
  const auto add = [&](Mesh m) {
    if (std::find(meshes.begin(), meshes.end(), m) != meshes.end()) {
      throw InputError(fmt::format("{}: {} is given twice; name each mesh once", option, to_string(m)));
    }
    meshes.push_back(std::move(m));
  };
  for (const std::string& word : words) {
    if (word.find('=') != std::string::npos) {
      add(mesh_of(chosen, option, word));
      continue;
    }
    if (chosen.mesh.size() > 1) {
      throw InputError(
          fmt::format("{}: the plan {} has the axes {}; give their sizes with --mesh {}=2", option,
                      chosen.name, fmt::join(chosen.mesh, ", "), fmt::join(chosen.mesh, "=2,")));
    }
    const std::vector<std::string> sizes = split({word});
    if (sizes.empty())
      throw InputError(fmt::format("{}: no group size given; write for example {} 2,4", option, option));
    for (const std::string& size : sizes)
      add(Mesh{{{chosen.mesh[0], group_size(size, option)}}});
  }
  return meshes;
}

std::vector<Mesh> PlanArguments::meshes(const Plan& chosen) const {
  for (const std::string& word : mesh) {
    if (word.find('=') == std::string::npos) {
      throw InputError(fmt::format("--mesh: \"{}\" is no axis=size; write for example {}=2", word,
                                   chosen.mesh[0]));
    }
  }
  std::vector<Mesh> meshes = parse(chosen, "--mesh", mesh);
  const bool none = tp.empty() && meshes.empty();
  for (Mesh& m : parse(chosen, "--tp", none ? std::vector<std::string>{default_tp_} : tp)) {
    if (std::find(meshes.begin(), meshes.end(), m) != meshes.end()) {
      throw InputError(fmt::format("--tp: {} is given twice; name each mesh once", to_string(m)));
    }
    meshes.push_back(std::move(m));
  }
  return meshes;
}

std::vector<std::string> split(const std::vector<std::string>& words) {
  std::vector<std::string> parts;
  for (const std::string& word : words) {
    std::istringstream stream(word);
    for (std::string part; std::getline(stream, part, ',');) {
      if (!part.empty()) parts.push_back(part);
    }
  }
  return parts;
}

std::vector<Phase> parse_phases(const std::vector<std::string>& words) {
  std::vector<Phase> phases;
  for (const std::string& word : split(words)) {
    if (word != "prefill" && word != "decode") {
      throw InputError(fmt::format("--phase: unknown phase \"{}\"; use prefill, decode or both", word));
    }
    const Phase phase = word == "prefill" ? Phase::prefill : Phase::decode;
    if (std::find(phases.begin(), phases.end(), phase) != phases.end()) {
      throw InputError(fmt::format("--phase: {} is given twice", word));
    }
    phases.push_back(phase);
  }
  if (phases.empty()) throw InputError("--phase: no phase given; use prefill, decode or both");
  return phases;
}

DType parse_dtype(const std::string& word, const std::string& option) {
  const std::optional<DType> dtype = parse_float_dtype(word);
  if (!dtype)
    throw InputError(fmt::format("{}: unknown dtype \"{}\"; use f64, f32, bf16 or fp16", option, word));
  return *dtype;
}

std::vector<DType> parse_dtypes(const std::vector<std::string>& words) {
  std::vector<DType> dtypes;
  for (const std::string& word : split(words)) {
    dtypes.push_back(parse_dtype(word, "--dtype"));
    if (std::count(dtypes.begin(), dtypes.end(), dtypes.back()) > 1) {
      throw InputError(fmt::format("--dtype: {} is given twice", name(dtypes.back())));
    }
  }
  if (dtypes.empty()) throw InputError("--dtype: no dtype given; use f64, f32, bf16 or fp16");
  return dtypes;
}

std::vector<std::int64_t> parse_lengths(const std::vector<std::string>& words) {
  std::vector<std::int64_t> lengths;
  for (const std::string& word : split(words)) {
    const std::optional<std::int64_t> length = integer(word);
    if (!length || *length < 1 || *length > 1000000) {
      throw InputError(
          fmt::format("--lengths: \"{}\" is no number of tokens; use whole numbers from 1", word));
    }
    lengths.push_back(*length);
  }
  return lengths;
}

void check_writable(const std::string& file) {
  if (file.empty()) return;
  const std::filesystem::path folder = std::filesystem::path(file).parent_path();
  if (!folder.empty() && !std::filesystem::is_directory(folder)) {
    throw InputError(fmt::format("{}: the folder {} doesn't exist", file, folder.string()));
  }
  if (std::filesystem::is_directory(file))
    throw InputError(fmt::format("{}: is a folder; name a file", file));
  if (access(folder.empty() ? "." : folder.c_str(), W_OK) != 0) {
    throw InputError(fmt::format("{}: can't be written; check the permissions of its folder", file));
  }
}

void write_file(const std::string& file, const std::string& text) {
  if (file.empty()) return;
  const std::string part = file + ".part";
  std::ofstream out(part, std::ios::binary);
  out << text;
  out.close();
  std::error_code error;
  if (out) std::filesystem::rename(part, file, error);
  if (out && !error) return;
  std::error_code ignored;
  std::filesystem::remove(part, ignored);
  throw InputError(fmt::format("{}: can't be written", file));
}

std::function<void(const std::string&, double)> terminal_progress() {
  if (isatty(STDERR_FILENO) == 0) return {};
  return [last = 0.0](const std::string& what, double done) mutable {
    if (done >= 0.0) last = done;
    std::fputs(fmt::format("\r\x1b[K{:3.0f} %  {}", 100.0 * last, what).c_str(), stderr);
    if (last >= 1.0) std::fputs("\r\x1b[K", stderr);
    std::fflush(stderr);
  };
}

bool stdout_is_terminal() { return isatty(STDOUT_FILENO) != 0; }

}  // namespace shardcheck::cli
