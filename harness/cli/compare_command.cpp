// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <filesystem>
#include <memory>

#include "harness/candidate.hpp"
#include "harness/cli/arguments.hpp"
#include "harness/cli/commands.hpp"
#include "harness/golden.hpp"
#include "model/error.hpp"

namespace shardcheck::cli {
namespace {

struct CompareArguments {
  ModelArguments model;
  std::string golden, candidate, json;
  bool allow_unknown = false;
};

int run(const CompareArguments& a) {
  check_writable(a.json);
  if (a.golden.empty() == a.candidate.empty()) {
    throw InputError("compare needs --golden FILE or --candidate DIR, one of them");
  }
  if (!a.golden.empty()) {
    if (!std::filesystem::exists(a.golden))
      throw InputError(fmt::format("--golden {}: no such file", a.golden));
    const Model model = a.model.load();
    const GoldenReport report = compare_golden(model, a.golden, {a.allow_unknown});
    fmt::print("{}", golden_table(report));
    write_file(a.json, golden_json(report));
    return report.passed() ? 0 : 1;
  }
  const Model model = a.model.load();
  const VerifyParts parts = builtin_parts();
  const Candidate candidate = read_candidate(model, parts.ops, a.candidate, {a.allow_unknown});
  const CandidateReport report = compare_candidate(model, candidate, parts);
  fmt::print("{}", candidate_table(report));
  write_file(a.json, candidate_json(report));
  return report.passed() ? 0 : 1;
}

}  // namespace

void add_compare(CLI::App& app, int& exit_code) {
  CLI::App* command = app.add_subcommand(
      "compare",
      "The reference against numbers from elsewhere: a golden file "
      "of an unsharded run, or the per-rank tensors of a sharded one.");
  const auto a = std::make_shared<CompareArguments>();
  a->model.add_to(*command);
  command
      ->add_option("--golden", a->golden,
                   "safetensors file of module outputs in f64, by module path")
      ->type_name("FILE");
  command
      ->add_option("--candidate", a->candidate,
                   "folder with manifest.json (shardcheck.taps/1) and a safetensors file per rank")
      ->type_name("DIR");
  command->add_flag("--allow-unknown", a->allow_unknown,
                    "count tensors that the model doesn't have, instead of refusing them");
  command->add_option("--json", a->json, "write the report, schema shardcheck.compare/1")
      ->type_name("FILE");
  command->footer(
      "Examples: shardcheck compare path/to/model --golden golden.safetensors\n"
      "          shardcheck compare path/to/model --candidate folder-of-my-run");
  command->callback([a, &exit_code] { exit_code = run(*a); });
}

}  // namespace shardcheck::cli
