// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <memory>

#include "harness/cli/arguments.hpp"
#include "harness/cli/commands.hpp"
#include "harness/lint.hpp"
#include "sharded/op.hpp"

namespace shardcheck::cli {
namespace {

struct LintArguments {
  ModelArguments model;
  PlanArguments plan;
  std::string json;
};

int run(const LintArguments& a) {
  check_writable(a.json);
  const Plan plan = load_plan(a.plan.plan);
  const std::vector<Mesh> meshes = a.plan.meshes(plan);
  const LintReport report = lint(a.model.load(true), plan, meshes, builtin_ops());
  fmt::print("{}", lint_text(report));
  write_file(a.json, lint_json(report));
  return report.passed() ? 0 : 1;
}

}  // namespace

void add_lint(CLI::App& app, int& exit_code) {
  CLI::App* command = app.add_subcommand("lint",
                                         "Is a plan legal? Placement rules and wasted exchanges, "
                                         "from shapes alone, for a model of any size.");
  const auto a = std::make_shared<LintArguments>();
  a->model.add_to(*command);
  a->plan.add_to(*command, "1,2,4,8");
  command->add_option("--json", a->json, "write the report, schema shardcheck.lint/1")
      ->type_name("FILE");
  command->footer("Example: shardcheck lint llama-3.1-405b --plan my-plan.json --tp 8");
  command->callback([a, &exit_code] { exit_code = run(*a); });
}

}  // namespace shardcheck::cli
