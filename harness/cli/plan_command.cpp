// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <filesystem>
#include <memory>
#include <optional>

#include "harness/cli/arguments.hpp"
#include "harness/cli/commands.hpp"
#include "harness/import/import.hpp"
#include "harness/plan_explain.hpp"
#include "model/error.hpp"
#include "model/shipped.hpp"
#include "sharded/op.hpp"

namespace shardcheck::cli {
namespace {

struct ImportArguments {
  ModelArguments model;
  std::string file, from, select, name, output;
  std::vector<std::string> tp{"1,2,4,8"};
  bool repair = false;
};

struct ExplainArguments {
  ModelArguments model;
  PlanArguments plan;
  std::string json;
};

/// On one line, so that it stays a comment.
std::string one_line(std::string text) {
  std::replace_if(text.begin(), text.end(), [](unsigned char c) { return c < ' '; }, ' ');
  return text;
}

/// What the file was, at the head of the plan that is made of it.
std::string head_of(const ImportArguments& a, const ImportedPlan& imported) {
  std::string head = "// " +
                     one_line(fmt::format("From {}{}, read as {}.",
                                          std::filesystem::path(a.file).filename().string(),
                                          a.select.empty() ? "" : ", " + a.select, a.from)) +
                     "\n";
  for (const std::string& note : imported.notes) head += "// " + one_line(note) + "\n";
  return head;
}

int run_import(const ImportArguments& a) {
  check_writable(a.output);
  ImportOptions options;
  options.source = parse_import_source(a.from);
  options.select = a.select;
  options.name = a.name;
  options.repair = a.repair;
  Plan line;  // for the sizes alone
  line.mesh = {"tp"};
  options.sizes.clear();
  for (const Mesh& mesh : PlanArguments::parse(line, "--tp", a.tp))
    options.sizes.push_back(mesh.ranks());
  std::optional<Model> model;
  if (!a.model.option.empty()) model.emplace(a.model.load(true));
  if (model) options.model = &*model;
  const ImportedPlan imported = import_plan(read_text(a.file), a.file, options);
  const std::string text = write_plan(imported.plan, imported.remarks, head_of(a, imported));
  if (a.output.empty()) {
    fmt::print("{}", text);
    return 0;
  }
  write_file(a.output, text);
  for (const std::string& note : imported.notes) fmt::print("note: {}\n", note);
  const PlanSection& section = imported.plan.families.at("");
  fmt::print("{}: {} rules for weights, {} exchanges, {} kept unchecked\n", a.output,
             section.weights.size(), section.collectives.size(), section.unchecked.size());
  return 0;
}

int run_explain(const ExplainArguments& a) {
  check_writable(a.json);
  const Plan plan = load_plan(a.plan.plan);
  const std::vector<Mesh> meshes = a.plan.meshes(plan);
  const Model model = a.model.load(true);
  std::vector<PlanExplanation> all;
  for (const Mesh& mesh : meshes) all.push_back(explain(model, plan, mesh, builtin_ops()));
  for (const PlanExplanation& one : all)
    fmt::print("{}{}", &one == &all.front() ? "" : "\n", explain_text(one));
  write_file(a.json, explain_json(all));
  return 0;
}

void add_import(CLI::App& parent, int& exit_code) {
  CLI::App* command = parent.add_subcommand(
      "import", "Reads a plan of another project, with the meaning that it has there.");
  const auto a = std::make_shared<ImportArguments>();
  command->add_option("FILE", a->file, "the plan, as JSON (comments are allowed)")
      ->required()
      ->type_name("");
  command->add_option("--from", a->from, "whose it is: hf, dtensor, deepspeed or vllm")
      ->required()
      ->type_name("SOURCE");
  command
      ->add_option("--model", a->model.option,
                   "the model that it is for: every rule must match one of its modules (deepspeed "
                   "and vllm need it)")
      ->type_name("MODEL");
  command->add_option("--select", a->select, "of a file that holds several plans: which")
      ->type_name("NAME");
  command->add_option("--name", a->name, "what to call the plan (default: the file's name)")
      ->type_name("NAME");
  command
      ->add_option("--tp", a->tp, "group sizes to write ranges for, where a cut has no other name")
      ->type_name("LIST")
      ->default_str(a->tp.front());
  command->add_flag("--repair", a->repair,
                    "cut q, k, v and o between whole heads, and everything else balanced");
  command->add_option("-o,--output", a->output, "the plan's file (default: standard output)")
      ->type_name("FILE");
  command->footer(
      "Example: shardcheck plan import tp-plan.json --from hf --model llama-3-8b -o my-plan.json");
  command->callback([a, &exit_code] { exit_code = run_import(*a); });
}

void add_explain(CLI::App& parent, int& exit_code) {
  CLI::App* command = parent.add_subcommand(
      "explain", "Says in words who holds what of each weight under a plan, and what is sent.");
  const auto a = std::make_shared<ExplainArguments>();
  a->model.add_to(*command);
  a->plan.add_to(*command, "2");
  command->add_option("--json", a->json, "write the same, schema shardcheck.plan/1")
      ->type_name("FILE");
  command->footer("Example: shardcheck plan explain tiny-llama --plan megatron --tp 2");
  command->callback([a, &exit_code] { exit_code = run_explain(*a); });
}

}  // namespace

void add_plan(CLI::App& app, int& exit_code) {
  CLI::App* command = app.add_subcommand(
      "plan", "Import a plan of another project, or explain a plan in words.");
  command->require_subcommand(1);
  command->footer("");
  add_import(*command, exit_code);
  add_explain(*command, exit_code);
}

}  // namespace shardcheck::cli
