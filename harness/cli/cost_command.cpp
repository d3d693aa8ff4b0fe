// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <memory>

#include "harness/cli/arguments.hpp"
#include "harness/cli/commands.hpp"
#include "harness/cost_report.hpp"
#include "harness/lint.hpp"
#include "harness/trace.hpp"
#include "model/error.hpp"
#include "sharded/fusion.hpp"
#include "sim/algorithm.hpp"

namespace shardcheck::cli {
namespace {

struct CostArguments {
  ModelArguments model;
  PlanArguments plan;
  std::vector<std::string> phases{"prefill,decode"}, links;
  std::string dtype = "bf16", wire, gpu = "h100", json;
  std::int64_t batch = 1, sequence = 4096;
  bool force = false, fuse = false;
};

int run(const CostArguments& a) {
  check_writable(a.json);
  if (a.batch < 1 || a.sequence < 1 || a.batch > 1000000 || a.sequence > 100000000) {
    throw InputError("--batch must lie in 1 to 1e6 and --seq in 1 to 1e8");
  }
  const Plan plan = load_plan(a.plan.plan);
  const std::vector<Mesh> meshes = a.plan.meshes(plan);
  const std::vector<Phase> phases = parse_phases(a.phases);
  TraceOptions options;
  options.settings.storage = parse_dtype(a.dtype, "--dtype");
  options.settings.wire = a.wire.empty() ? options.settings.storage : parse_dtype(a.wire, "--wire");
  options.batch = a.batch;
  options.sequence = a.sequence;
  const Model model = a.model.load(true);
  const Config& config = model.config();
  if (config.rope.type == RopeConfig::Type::none && a.sequence + 1 > config.max_positions) {
    throw InputError(fmt::format(
        "--seq {}: {} has {} learned positions, and decode needs one more than the prompt; "
        "use at most {}",
        a.sequence, config.name, config.max_positions, config.max_positions - 1));
  }
  const VerifyParts parts = builtin_parts();

  CostReport report;
  report.model = a.model.repro();
  report.plan = plan.name;
  report.dtype = std::string(name(options.settings.storage));
  report.wire = std::string(name(options.settings.wire));
  report.batch = a.batch;
  report.sequence = a.sequence;
  report.fused = a.fuse;
  report.gpu = sim::load_gpu(a.gpu);
  if (a.links.empty()) report.links = sim::shipped_links();
  for (const std::string& link : split(a.links)) report.links.push_back(sim::load_link(link));
  if (report.links.empty()) throw InputError("--link: no link given; shardcheck info lists them");
  const sim::AlphaBetaModel algorithms;
  report.algorithm_constants = algorithms.constants();
  std::vector<sim::RunLoad> runs;
  for (const Mesh& mesh : meshes) {
    Program program = build_program(model, resolve(plan, model, mesh), parts.ops);
    if (!program.findings.empty() && !a.force) {
      fmt::print("{}The plan is not legal; --force costs it all the same.\n",
                 findings_text(program.findings, plan.origin));
      return 1;
    }
    if (a.fuse) program = fuse(program, parts.ops);
    for (const Phase phase : phases) runs.push_back(trace(model, program, phase, options, parts));
  }
  report.rows = sim::costs(runs, report.links, report.gpu, algorithms);
  fmt::print("{}", cost_table(report));
  write_file(a.json, cost_json(report));
  return 0;
}

}  // namespace

void add_cost(CLI::App& app, int& exit_code) {
  CLI::App* command = app.add_subcommand("cost",
                                         "What does the communication cost? The program's own "
                                         "collectives on each link, compute by a roofline.");
  const auto a = std::make_shared<CostArguments>();
  a->model.add_to(*command);
  a->plan.add_to(*command, "1,2,4,8");
  command
      ->add_option("--phase", a->phases,
                   "prefill: all tokens of all sequences; decode: one more token of each")
      ->type_name("LIST")
      ->default_str(a->phases.front());
  command->add_option("--batch", a->batch, "sequences")->capture_default_str();
  command->add_option("--seq", a->sequence, "tokens per sequence")->capture_default_str();
  command->add_option("--dtype", a->dtype, "what weights and activations are stored in")
      ->type_name("DTYPE")
      ->capture_default_str();
  command->add_option("--wire", a->wire, "what reductions send (default: the storage dtype)")
      ->type_name("DTYPE");
  command->add_option("--gpu", a->gpu, "a GPU file or a shipped GPU's name")
      ->type_name("GPU")
      ->capture_default_str();
  command
      ->add_option("--link", a->links,
                   "a link file or a shipped link's name (repeatable; default: all)")
      ->type_name("LINK");
  command->add_flag("--fuse", a->fuse,
                    "each residual add in one pass with the RMSNorm that reads it");
  command->add_flag("--force", a->force, "cost a plan that breaks placement rules");
  command->add_option("--json", a->json, "write the report, schema shardcheck.cost/1")
      ->type_name("FILE");
  command->footer(
      "Example: shardcheck cost llama-3-70b --tp 4,8 --batch 8 --seq 2048 --gpu h200 "
      "--link nvlink4-nvswitch3,pcie5-x16");
  command->callback([a, &exit_code] { exit_code = run(*a); });
}

}  // namespace shardcheck::cli
