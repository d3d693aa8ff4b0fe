// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <memory>

#include "harness/cli/arguments.hpp"
#include "harness/cli/commands.hpp"
#include "harness/faults/kill_table.hpp"
#include "model/error.hpp"

namespace shardcheck::cli {
namespace {

struct FaultArguments {
  std::vector<std::string> models, tp{"2,3,4,8"}, faults;
  std::string plan, json;
  int spots = 2;
  bool list = false, no_legal = false;
};

const std::vector<std::string> kModels{"tiny-llama", "tiny-gpt2",  "tiny-qwen2",
                                       "tiny-qwen3", "tiny-olmo2", "tiny-phi3"};

std::vector<std::string> named(const std::string& option, const std::vector<std::string>& words) {
  std::vector<std::string> names = split(words);
  if (names.empty()) throw InputError(option + ": no name given");
  return names;
}

int run(const FaultArguments& a) {
  check_writable(a.json);
  if (a.list) {
    fmt::print("{}", catalogue_table(fault_catalogue()));
    return 0;
  }
  FaultOptions options;
  options.models = a.models.empty() ? kModels : named("--model", a.models);
  if (!a.plan.empty()) options.plan = a.plan;
  options.only_plan = !a.plan.empty();
  Plan line;  // for the sizes alone
  line.mesh = {"tp"};
  for (const Mesh& mesh : PlanArguments::parse(line, "--tp", a.tp)) {
    if (mesh.ranks() < 2 || mesh.ranks() > 64)
      throw InputError(fmt::format("--tp: a fault needs 2 to 64 ranks, not {}", mesh.ranks()));
    options.tp.push_back(mesh.ranks());
  }
  if (!a.faults.empty()) options.faults = named("--fault", a.faults);
  if (a.spots < 1) throw InputError("--spots must be at least 1");
  options.spots = a.spots;
  options.legal = !a.no_legal;
  options.progress = terminal_progress();
  const FaultReport report = run_faults(options, builtin_parts());
  fmt::print("{}", faults_table(report));
  write_file(a.json, faults_json(report));
  return report.passed() ? 0 : 1;
}

}  // namespace

void add_faults(CLI::App& app, int& exit_code) {
  CLI::App* command = app.add_subcommand(
      "faults",
      "Does the checker find what it must? Plants faults into a correct program, "
      "one at a time, before every gate.");
  const auto a = std::make_shared<FaultArguments>();
  command
      ->add_option("--model", a->models,
                   fmt::format("models to plant them in (default {})", fmt::join(kModels, ",")))
      ->type_name("LIST");
  command
      ->add_option("--plan", a->plan,
                   "a plan file or a shipped plan's name (default megatron, and for some faults "
                   "the plan that has their places)")
      ->type_name("PLAN");
  command->add_option("--tp", a->tp, "group sizes; those that a model can't have are passed over")
      ->type_name("LIST")
      ->default_str(a->tp.front());
  command->add_option("--fault", a->faults, "only these; --list names them")->type_name("LIST");
  command->add_option("--spots", a->spots, "places for each fault, model and group size")
      ->capture_default_str();
  command->add_flag("--list", a->list, "print the catalogue, and run nothing");
  command->add_flag("--no-legal", a->no_legal,
                    "leave out the legal variations, which must raise no alarm");
  command->add_option("--json", a->json, "write all rows, schema shardcheck.faults/1")
      ->type_name("FILE");
  command->footer(
      "Example: shardcheck faults --model tiny-gpt2 --tp 2,4 --fault bias_on_every_rank");
  command->callback([a, &exit_code] { exit_code = run(*a); });
}

}  // namespace shardcheck::cli
