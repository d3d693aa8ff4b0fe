// SPDX-License-Identifier: Apache-2.0
// Runs the bundle's stages on one device, prints a line for each and writes a report. run.sh starts it.
// Exit codes: 0 all passed, 1 a stage failed or was not run, 2 bad usage or no device, 3 a fault of this program.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <fstream>
#include <system_error>

#include "kernels/device.hpp"
#include "model/error.hpp"
#include "tests/bundle/report.hpp"

namespace {

using namespace shardcheck;
using namespace shardcheck::bundle;
namespace fs = std::filesystem;

struct Arguments {
  std::string root, device = "cuda", json = "shardcheck-gpu.json";
  std::vector<std::string> stages;
  double seconds = 235.0;  // a run is asked to fit into four minutes
};

class WorkFolder {
 public:
  WorkFolder() {
    std::string name = (fs::temp_directory_path() / "shardcheck-gpu.XXXXXX").string();
    if (mkdtemp(name.data()) == nullptr)
      throw InputError(name + ": no temporary folder can be made there; set TMPDIR");
    path_ = name;
  }
  ~WorkFolder() {
    std::error_code error;
    if (!kept_) fs::remove_all(path_, error);
  }
  WorkFolder(const WorkFolder&) = delete;
  WorkFolder& operator=(const WorkFolder&) = delete;

  const fs::path& path() const { return path_; }
  void keep() { kept_ = true; }

 private:
  fs::path path_;
  bool kept_ = false;
};

/// The stages that were asked for, all if none was; a word matches the beginning of a name.
std::vector<Stage> chosen(std::vector<Stage> all, const std::vector<std::string>& words) {
  if (words.empty()) return all;
  std::vector<Stage> result;
  for (const std::string& word : words) {
    const std::size_t before = result.size();
    for (const Stage& stage : all) {
      if (stage.name.starts_with(word)) result.push_back(stage);
    }
    if (result.size() > before) continue;
    std::string names;
    for (const Stage& stage : all) names += (names.empty() ? "" : ", ") + stage.name;
    throw InputError(fmt::format("--stages: no stage begins with \"{}\"; there are: {}", word, names));
  }
  return result;
}

/// Written whole or not at all.
void write_whole(const fs::path& file, const std::string& text) {
  const fs::path unfinished = file.string() + ".part";
  std::ofstream stream(unfinished, std::ios::binary);
  stream << text;
  stream.close();
  std::error_code error;
  if (stream) fs::rename(unfinished, file, error);
  if (!stream || error) {
    fs::remove(unfinished, error);
    throw InputError(fmt::format("{} can't be written; give another file with --json", file.string()));
  }
}

int run(const Arguments& arguments) {
  const auto start = std::chrono::steady_clock::now();
  const auto elapsed = [&] {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  };
  Report report;
  report.kind = arguments.device;
  const std::string described = builtin_devices().describe(arguments.device);
  if (described.starts_with("none")) {
    fmt::print(stderr, "no device of kind {} answers: {}\n", arguments.device, described);
    return 2;
  }
  report.device = described;
  describe_host(report);
  if (std::ifstream build(fs::path(arguments.root) / "build.json"); build)
    report.build = Json::parse(build);
  WorkFolder work;
  const Bundle bundle{fs::absolute(arguments.root), work.path(), arguments.device};
  const std::vector<Stage> stages = chosen(stages_of(bundle), arguments.stages);

  fmt::print("{}", table_head(report));
  std::fflush(stdout);
  for (const Stage& stage : stages) {
    const Outcome outcome = run_stage(stage, bundle, arguments.seconds - elapsed());
    fmt::print("{}", table_line(stage, outcome));
    std::fflush(stdout);
    report.stages.emplace_back(stage, outcome);
  }
  report.seconds = elapsed();
  write_whole(arguments.json, report_json(report).dump(2) + "\n");
  fmt::print("\n{}; report: {}\n", table_end(report), arguments.json);
  if (!report.passed()) {
    work.keep();
    fmt::print("what the programs wrote: {}\n", work.path().string());
  }
  return report.passed() ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) {
  Arguments arguments;
  CLI::App app("Runs every check that needs a GPU, and writes what came out.", "gpu_stages");
  app.add_option("--root", arguments.root, "folder of the bundle: bin/, modules/, share/")->required();
  app.add_option("--device", arguments.device, "cuda, or another kind to try the bundle out")
      ->capture_default_str();
  app.add_option("--json", arguments.json, "the report, schema shardcheck.gpu-run/1")->capture_default_str();
  app.add_option("--stages", arguments.stages,
                 "beginnings of names, separated by commas; default: all")
      ->delimiter(',');
  app.add_option("--seconds", arguments.seconds, "what is not begun by then is not run")
      ->capture_default_str();
  try {
    app.parse(argc, argv);
    return run(arguments);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : 2;
  } catch (const InputError& error) {
    fmt::print(stderr, "{}\n", error.what());
    return 2;
  } catch (const std::exception& error) {
    fmt::print(stderr, "a fault of gpu_stages: {}\n", error.what());
    return 3;
  }
}
