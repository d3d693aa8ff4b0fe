// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <memory>

#include "harness/cli/arguments.hpp"
#include "harness/cli/commands.hpp"
#include "harness/lint.hpp"
#include "model/error.hpp"

namespace shardcheck::cli {
namespace {

struct VerifyArguments {
  ModelArguments model;
  PlanArguments plan;
  std::vector<std::string> dtypes{"f64,f32,bf16,fp16"}, phases{"prefill,decode"}, lengths, ids_for;
  std::int64_t tokens = 16, steps = 8, chunk = 0;
  std::optional<std::int64_t> batch;
  std::uint64_t seed = 1;
  std::string ids, wire, order = "ring", hop = "wire", device = "cpu", dump, json;
  bool force = false, fuse = false;
};

std::string repro(const VerifyArguments& a) {
  std::string text = fmt::format("shardcheck verify {} --plan {}", a.model.repro(), a.plan.plan);
  if (!a.ids.empty()) {
    text += " --ids " + a.ids;
  } else if (!a.lengths.empty()) {
    text += fmt::format(" --lengths {}", fmt::join(split(a.lengths), ","));
  } else {
    text += fmt::format(" --tokens {}", a.tokens);
    if (a.batch) text += fmt::format(" --batch {}", *a.batch);
  }
  if (a.steps != 8) text += fmt::format(" --steps {}", a.steps);
  if (a.chunk != 0) text += fmt::format(" --chunk {}", a.chunk);
  if (a.seed != 1) text += fmt::format(" --seed {}", a.seed);
  if (a.order != "ring") text += " --order " + a.order;
  if (a.hop != "wire") text += " --hop " + a.hop;
  if (a.device != "cpu") text += " --device " + a.device;
  if (a.fuse) text += " --fuse";
  if (a.force) text += " --force";
  return text;
}

ReduceSpec reduction(const VerifyArguments& a) {
  const std::optional<ReduceOrder> order = parse_reduce_order(a.order);
  if (!order) {
    throw InputError(fmt::format(
        "--order: unknown order \"{}\"; use ring, tree, one_shot, two_shot, nvls or fixed_tree",
        a.order));
  }
  const std::optional<HopRounding> hop = parse_hop_rounding(a.hop);
  if (!hop) throw InputError(fmt::format("--hop: unknown rounding \"{}\"; use wire or f32", a.hop));
  return {ReduceOp::sum, *order, *hop};
}

int run(const VerifyArguments& a) {
  check_writable(a.json);
  constexpr std::int64_t kMost = 1000000;  // longer runs end by the clock, not by a message
  const std::int64_t batch = a.batch.value_or(1);
  if (a.tokens < 1 || batch < 1 || a.tokens > kMost || batch > kMost) {
    throw InputError(fmt::format("--tokens and --batch must lie in 1 to {}", kMost));
  }
  if (a.steps < 0 || a.chunk < 0) throw InputError("--steps and --chunk must be at least 0");
  const Plan plan = load_plan(a.plan.plan);
  VerifyOptions options;
  options.meshes = a.plan.meshes(plan);
  options.id_meshes = PlanArguments::parse(plan, "--ids-for", a.ids_for);
  options.dtypes = parse_dtypes(a.dtypes);
  options.phases = parse_phases(a.phases);
  if (!a.wire.empty()) options.wire = parse_dtype(a.wire, "--wire");
  options.reduction = reduction(a);
  options.inputs = {a.tokens, a.batch, parse_lengths(a.lengths), a.ids, a.seed, a.steps, a.chunk};
  options.device = a.device;
  options.force = a.force;
  options.fuse = a.fuse;
  options.dump = a.dump;
  options.repro = repro(a);
  options.progress = terminal_progress();
  const Model model = a.model.load();
  const VerifyReport report = verify(model, plan, options, builtin_parts());
  if (!report.judged) return 0;
  if (!report.findings.empty()) fmt::print("{}\n", findings_text(report.findings, plan.origin));
  if (!report.ran) {
    fmt::print(
        "The plan is not legal; --force runs it all the same, to see what the mistake does to the "
        "numbers.\n");
  } else {
    fmt::print("{}", verify_table(report, stdout_is_terminal()));
  }
  write_file(a.json, verify_json(report));
  return report.passed() ? 0 : 1;
}

}  // namespace

void add_verify(CLI::App& app, int& exit_code) {
  CLI::App* command = app.add_subcommand("verify",
                                         "Is the sharded program still the same model? Every TP "
                                         "size, precision and phase, through all gates.");
  const auto a = std::make_shared<VerifyArguments>();
  a->model.add_to(*command);
  a->plan.add_to(*command, "1,2,4");
  command
      ->add_option("--dtype", a->dtypes,
                   "what weights and activations are stored in: f64, f32, bf16, fp16")
      ->type_name("LIST")
      ->default_str(a->dtypes.front());
  command
      ->add_option("--phase", a->phases,
                   "prefill: whole sequences; decode: their last tokens one at a time")
      ->type_name("LIST")
      ->default_str(a->phases.front());
  command->add_option("--tokens", a->tokens, "T, the tokens of the longest sequence")->capture_default_str();
  command
      ->add_option("--batch", a->batch,
                   "how many sequences: of T, T-1, ... tokens (default: 1; where the plan cuts sequences, one more "
                   "than ranks share them)")
      ->type_name("INT");
  command
      ->add_option("--lengths", a->lengths,
                   "tokens of each sequence, such as 5,1,17, in place of --tokens and --batch")
      ->type_name("LIST");
  command
      ->add_option("--ids", a->ids,
                   "file of token ids, one sequence a line, in place of random ones")
      ->type_name("FILE");
  command
      ->add_option("--steps", a->steps,
                   "tokens at the end of each sequence that decode takes one by one")
      ->capture_default_str();
  command
      ->add_option("--chunk", a->chunk,
                   "tokens of each sequence per prefill step; 0: whole sequences")
      ->capture_default_str();
  command->add_option("--wire", a->wire, "what reductions send (default: the storage dtype)")
      ->type_name("DTYPE");
  command
      ->add_option("--order", a->order,
                   "order in which ranks' terms are summed: ring, tree, one_shot, two_shot, nvls, "
                   "fixed_tree")
      ->type_name("WORD")
      ->capture_default_str();
  command
      ->add_option("--hop", a->hop, "what a running sum of ring and tree is kept in: wire or f32")
      ->type_name("WORD")
      ->capture_default_str();
  command
      ->add_option("--ids-for", a->ids_for,
                   "random ids with the vocabulary borders of these sizes, not of --tp or --mesh")
      ->type_name("LIST");
  command->add_option("--seed", a->seed, "seed of the random token ids")->capture_default_str();
  command
      ->add_option("--device", a->device,
                   "what runs the sharded program; shardcheck info lists the kinds")
      ->type_name("KIND")
      ->capture_default_str();
  command->add_flag(
      "--fuse", a->fuse,
      "run each residual add in one pass with the RMSNorm that reads it; both are judged");
  command->add_flag("--force", a->force,
                    "run a plan that breaks placement rules, to see what that does");
  command
      ->add_option("--dump", a->dump,
                   "write every rank's values here (shardcheck.taps/1), one folder per cell if "
                   "there are several")
      ->type_name("DIR");
  command->add_option("--json", a->json, "write the report, schema shardcheck.verify/1")
      ->type_name("FILE");
  command->footer(
      "Example: shardcheck verify path/to/model --plan my-plan.json --tp 2,3,4 --dtype f32,bf16 "
      "--json report.json");
  command->callback([a, &exit_code] { exit_code = run(*a); });
}

}  // namespace shardcheck::cli
