// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <memory>

#include "harness/cli/arguments.hpp"
#include "harness/cli/commands.hpp"
#include "harness/lint.hpp"
#include "harness/prove.hpp"
#include "model/error.hpp"

namespace shardcheck::cli {
namespace {

struct ProveArguments {
  ModelArguments model;
  PlanArguments plan;
  std::vector<std::string> phases{"prefill,decode"};
  std::string shrink = "auto", json;
  int seeds = 0;
  bool force = false;
};

int run(const ProveArguments& a) {
  check_writable(a.json);
  if (a.shrink != "auto" && a.shrink != "off")
    throw InputError(fmt::format("--shrink: unknown word \"{}\"; use auto or off", a.shrink));
  if (a.seeds < 0 || a.seeds > 1000) throw InputError("--seeds must lie in 1 to 1000");
  const Plan plan = load_plan(a.plan.plan);
  ProveOptions options;
  options.meshes = a.plan.meshes(plan);
  options.phases = parse_phases(a.phases);
  options.shrink = a.shrink == "auto";
  if (a.seeds > 0) options.seeds = a.seeds;
  options.force = a.force;
  options.progress = terminal_progress();
  const ProveReport report = prove(a.model.load(true), plan, options, builtin_parts());
  if (!report.findings.empty()) fmt::print("{}\n", findings_text(report.findings, plan.origin));
  if (!report.ran) {
    fmt::print(
        "The plan is not legal; --force proves it all the same, to see where the values go "
        "wrong.\n");
  } else {
    fmt::print("{}", prove_text(report));
  }
  write_file(a.json, prove_json(report));
  return report.passed() ? 0 : 1;
}

}  // namespace

void add_prove(CLI::App& app, int& exit_code) {
  CLI::App* command = app.add_subcommand(
      "prove",
      "Is the sharded program the unsharded one, for any weights and "
      "inputs? Every value, exactly, over a prime field.");
  const auto a = std::make_shared<ProveArguments>();
  a->model.add_to(*command);
  a->plan.add_to(*command, "2,4,8");
  command->add_option("--phase", a->phases, "prefill, decode or both")
      ->type_name("LIST")
      ->default_str(a->phases.front());
  command
      ->add_option("--shrink", a->shrink,
                   "auto: dimensions as small as the plan's cuts allow; off: the model's own")
      ->type_name("WORD")
      ->capture_default_str();
  command
      ->add_option("--seeds", a->seeds,
                   "random fields to try (default: as many as push the chance of a false \"equal\" "
                   "below 2^-40)")
      ->type_name("K");
  command->add_flag("--force", a->force,
                    "prove a plan that breaks placement rules, to see where values go wrong");
  command->add_option("--json", a->json, "write the report, schema shardcheck.prove/1")
      ->type_name("FILE");
  command->footer("Example: shardcheck prove llama-3.1-405b --plan my-plan.json --tp 8");
  command->callback([a, &exit_code] { exit_code = run(*a); });
}

}  // namespace shardcheck::cli
