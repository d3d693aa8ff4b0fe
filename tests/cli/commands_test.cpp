// SPDX-License-Identifier: Apache-2.0
// What the program prints and returns when its input is sound.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <cmath>
#include <nlohmann/json.hpp>
#include <set>

#include "harness/end_to_end.hpp"
#include "model/shipped.hpp"
#include "tests/cli/program_run.hpp"

namespace shardcheck::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;
using Json = nlohmann::ordered_json;

/// Runs with --json and returns the report too.
std::pair<ProgramResult, Json> reported(const std::string& arguments) {
  const TempFolder folder;
  const std::filesystem::path file = folder.path() / "report.json";
  const ProgramResult result = run_program_with(arguments + " --json " + file.string());
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(folder.path()), {}), 1)
      << "one file and nothing beside it";
  return {result, Json::parse(read_all(file))};
}

std::set<std::string> keys(const Json& json) {
  std::set<std::string> found;
  for (const auto& item : json.items()) found.insert(item.key());
  return found;
}

bool is_margin(const Json& json) {
  return json.is_null() || json == "inf" || (json.is_number() && json.get<double>() > 0.0);
}

/// Processor time of all programs that were run so far.
double child_seconds() {
  rusage usage{};
  getrusage(RUSAGE_CHILDREN, &usage);
  const auto seconds = [](const timeval& t) {
    return static_cast<double>(t.tv_sec) + 1e-6 * static_cast<double>(t.tv_usec);
  };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

/// Equal but for the rounding of a sum of up to 64 terms in another order.
void expect_equal_sums(const Json& a, double b) {
  EXPECT_NEAR(a.get<double>(), b, 64 * 0x1p-53 * b);
}

TEST(Commands, HelpAndVersion) {
  for (const std::string arguments : {"--help", "verify --help", "compare --help", "cost --help",
                                      "lint --help", "info --help", "--version"}) {
    const ProgramResult result = run_program_with(arguments);
    EXPECT_EQ(result.exit_code, 0) << arguments;
    EXPECT_EQ(result.err, "") << arguments;
    EXPECT_FALSE(result.out.empty()) << arguments;
  }
  for (const std::string command : {"verify", "compare", "cost", "info"})
    EXPECT_THAT(run_program_with("--help").out, HasSubstr("\n  " + command));
}

TEST(Commands, InfoNamesWhatThereIs) {
  const ProgramResult result = run_program_with("info");
  EXPECT_EQ(result.exit_code, 0);
  for (const std::string word :
       {"cpu", "meta", "threads", "attention", "tiny-llama", "llama-3.1-405b", "gpt-3-175b",
        "megatron", "replicated", "h100", "G3"})
    EXPECT_THAT(result.out, HasSubstr(word));
}

TEST(Commands, VerifyPasses) {
  const auto [result, json] = reported("verify tiny-llama --tp 1,2,3 --dtype f64,bf16 --tokens 10");
  EXPECT_EQ(result.exit_code, 0) << result.out;
  EXPECT_EQ(result.err, "") << "no progress where there is no terminal";
  EXPECT_THAT(result.out, AllOf(HasSubstr("12 passed, 0 failed\n"), Not(HasSubstr("\x1b"))));
  EXPECT_EQ(json["schema"], "shardcheck.verify/1");
  EXPECT_EQ(json["cells"].size(), 12u);
  EXPECT_EQ(json["summary"], Json({{"passed", 12}, {"failed", 0}, {"skipped", 0}, {"mistrusted", 0}}));
  for (const Json& cell : json["cells"]) {
    EXPECT_EQ(cell["verdict"], "passed");
    EXPECT_THAT(keys(cell), ::testing::IsSupersetOf({"mesh", "dtype", "wire", "phase", "verdict",
                                                     "gates", "first", "worst", "end_to_end"}));
    EXPECT_TRUE(cell["first"].is_null());
    EXPECT_EQ(keys(cell["gates"]),
              (std::set<std::string>{"G0", "audit", "G1", "G2", "G3", "G4", "G5"}));
    int ran = 0;
    for (const auto& [gate, state] : cell["gates"].items()) {
      EXPECT_EQ(keys(state), (std::set<std::string>{"ran", "passed", "margin"}));
      EXPECT_TRUE(is_margin(state["margin"])) << gate << state;
      EXPECT_NE(state["passed"], Json(state["ran"] == Json(true) ? false : true))
          << gate << ": not run is not passed";
      if (state["ran"] == Json(true)) ++ran;
      if (gate == "G0" || gate == "audit" || state["ran"] == Json(false)) {
        EXPECT_TRUE(state["margin"].is_null()) << gate;
      }
    }
    EXPECT_EQ(ran, 4);
    EXPECT_EQ(cell["gates"]["G2"]["ran"], Json(cell["dtype"] == Json("f64")));
    EXPECT_EQ(cell["gates"]["G4"]["ran"], Json(cell["dtype"] != Json("f64")));
    EXPECT_THAT(keys(cell["worst"]),
                ::testing::IsSupersetOf({"tap", "rank", "A", "B", "C", "limits"}));
    EXPECT_EQ(keys(cell["end_to_end"]),
              (std::set<std::string>{"rel_fro", "rel_max", "kl_mean", "kl_max", "top1_agree"}));
    if (cell["dtype"] == "f64") {
      EXPECT_LE(cell["end_to_end"]["rel_max"].get<double>(), kG2Limit);
    }
    EXPECT_EQ(
        run_program_with(cell["repro"].get<std::string>().substr(std::string("shardcheck ").size())).exit_code,
        0);
  }
}

TEST(Commands, EveryCellIsCountedOnce) {
  const auto [result, json] = reported(
      "verify tiny-gpt2 --tp 2,3 --phase prefill --dtype f32 --wire bf16 --batch 2");
  EXPECT_EQ(result.exit_code, 0) << result.out;
  std::int64_t counted = 0;
  for (const auto& [word, count] : json["summary"].items()) counted += count.get<std::int64_t>();
  EXPECT_EQ(counted, static_cast<std::int64_t>(json["cells"].size()));
  EXPECT_EQ(json["cells"][1]["mesh"], Json({{"tp", 3}}));
  EXPECT_EQ(json["cells"][1]["wire"], "bf16");
}

/// megatron without the all_reduce after down_proj.
std::string illegal_plan(const TempFolder& folder) {
  Json plan = Json::parse(read_text(find_shipped("plans", "megatron")), nullptr, true, true);
  plan["families"]["llama"]["collectives"].erase("layers.*.mlp.down_proj.out");
  return folder.write("illegal.json", plan.dump(1)).string();
}

TEST(Commands, IllegalPlanIsRefusedAndForced) {
  const TempFolder folder;
  const std::string arguments = "verify tiny-llama --tp 2 --dtype f32 --plan " + illegal_plan(folder);
  const auto [refused, report] = reported(arguments);
  EXPECT_EQ(refused.exit_code, 1);
  EXPECT_EQ(refused.err, "");
  EXPECT_THAT(refused.out, AllOf(HasSubstr("mlp.down_proj is P(sum) on tp"),
                                 HasSubstr("all_reduce(sum, tp)"), HasSubstr("--force")));
  EXPECT_TRUE(report["cells"].empty());
  EXPECT_EQ(report["findings"][0]["tap"], "layers.0.mlp.down_proj");
  EXPECT_EQ(report["findings"][0]["fix"],
            "\"layers.0.mlp.down_proj.out\": \"all_reduce(sum, tp)\"");

  const auto [forced, json] = reported(arguments + " --force");
  EXPECT_EQ(forced.exit_code, 1);
  EXPECT_THAT(forced.out, AllOf(HasSubstr("first wrong tap  layers.0.mlp.down_proj (all ranks"),
                                HasSubstr("0 passed, 2 failed")));
  EXPECT_EQ(json["summary"]["failed"], 2);
  for (const Json& cell : json["cells"]) {
    EXPECT_EQ(cell["verdict"], "failed");
    const Json& first = cell["first"];
    EXPECT_EQ(keys(first), (std::set<std::string>{"gate", "tap", "phase", "step", "ranks", "index",
                                                  "local_index", "got", "expected", "cause_name", "cause",
                                                  "residual", "also", "propagated"}));
    EXPECT_EQ(first["cause_name"], "one_ranks_partial");
    EXPECT_THAT(first["cause"].get<std::string>(), HasSubstr("equals one rank's partial"));
    EXPECT_LE(first["residual"]["A"], first["residual"]["limits"]["A"]);
    EXPECT_EQ(first["propagated"]["tap"], "layers.0.mlp.down_proj");
    EXPECT_EQ(first["tap"], "layers.0.mlp.down_proj");
    EXPECT_EQ(first["ranks"], "all");
    EXPECT_EQ(first["gate"], "G3");
    EXPECT_EQ(first["index"].size(), 2u);
    EXPECT_TRUE(first["got"].is_number());
    EXPECT_NE(first["got"], first["expected"]);
    EXPECT_THAT(first["cause"].get<std::string>(), HasSubstr("all_reduce(sum, tp)"));
  }
  EXPECT_EQ(run_program_with("cost tiny-llama --tp 2 --plan " + illegal_plan(folder)).exit_code, 1);
}

TEST(Commands, LintExitsOnErrorsOnly) {
  const auto [legal, report] = reported("lint llama-3.1-405b --tp 2,8");
  EXPECT_EQ(legal.exit_code, 0);
  EXPECT_EQ(report["schema"], "shardcheck.lint/1");
  EXPECT_EQ(report["verdict"], "passed");
  const TempFolder folder;
  const auto plan = [&folder](const std::string& key, const std::string& name,
                              const std::string& entry) {
    const Json text{{"name", "p"}, {"mesh", {"tp"}}, {key, {{name, Json::parse(entry)}}}};
    return "lint --model tiny-llama --tp 2 --plan " + folder.write("plan.json", text.dump()).string();
  };
  const auto [illegal, findings] = reported(plan("weights", "lm_head", R"p({"tp": "shard(vocab)"})p"));
  EXPECT_EQ(illegal.exit_code, 1);
  EXPECT_THAT(illegal.out, HasSubstr("output_not_replicated"));
  EXPECT_EQ(findings["findings"][0]["rule"], "output_not_replicated");
  const auto [wasteful, warned] = reported(plan("collectives", "norm.out", R"p("broadcast(0, tp)")p"));
  EXPECT_EQ(wasteful.exit_code, 0);
  EXPECT_THAT(wasteful.out, HasSubstr("warning: broadcast(0, tp) at norm on tp wastes"));
  EXPECT_EQ(warned["findings"][0]["severity"], "warning");
  EXPECT_THAT(refused(plan("weights", "lm_head", R"p({"tp": "shrd(vocab)"})p")),
              HasSubstr("plan.json:1:"));
}

TEST(Commands, ModelBeforeOrAsAnOption) {
  const std::string rest = " --tp 2 --dtype f32 --phase prefill";
  const std::string first = run_program_with("verify tiny-llama" + rest).out;
  EXPECT_THAT(first, HasSubstr("1 passed, 0 failed"));
  for (const std::string model : {"--model tiny-llama", "fixtures/models/tiny-llama",
                                  "--model fixtures/models/tiny-llama/config.json"})
    EXPECT_EQ(run_program_with("verify " + model + rest).out, first) << model;
  EXPECT_EQ(run_program_with("verify tiny-llama --mesh tp=2 --dtype f32 --phase prefill").out, first);
}

TEST(Commands, VerifySyntheticWeights) {
  const ProgramResult result = run_program_with(
      "verify smollm2-135m --random 1 --layers 1 --tp 4 --dtype bf16 --phase prefill --tokens 4");
  EXPECT_EQ(result.exit_code, 0) << result.out << result.err;
}

TEST(Commands, CompareGolden) {
  for (const std::string model : {"tiny-llama", "tiny-llama-bias", "tiny-qwen2", "tiny-mistral",
                                  "tiny-gpt2", "tiny-odd-vocab", "tiny-qwen3", "tiny-olmo2",
                                  "tiny-phi3"}) {
    const auto [result, json] = reported("compare " + model + " --golden fixtures/models/" + model +
                                         "/golden.safetensors");
    EXPECT_EQ(result.exit_code, 0) << result.out;
    EXPECT_EQ(json["schema"], "shardcheck.compare/1");
    EXPECT_EQ(json["verdict"], "passed");
    EXPECT_EQ(json["unknown"], 0);
    EXPECT_GT(json["compared"].get<int>(), 50);
    EXPECT_THAT(keys(json["worst"]), ::testing::IsSupersetOf({"phase", "tap", "rel"}));
    EXPECT_EQ(json["limit"], 1e-13);
    EXPECT_LE(json["worst"]["rel"].get<double>(), json["limit"].get<double>());
  }
}

// Another model's golden: the numbers differ, or a name is unknown; never passed.
TEST(Commands, CompareGoldenOfAnotherModel) {
  const ProgramResult unknown = run_program_with(
      "compare tiny-llama --golden fixtures/models/tiny-gpt2/golden.safetensors");
  EXPECT_EQ(unknown.exit_code, 2);
  const auto [wrong, json] = reported(
      "compare tiny-llama --random 5 --golden fixtures/models/tiny-llama/golden.safetensors");
  EXPECT_EQ(wrong.exit_code, 1);
  EXPECT_EQ(json["verdict"], "failed");
}

TEST(Commands, DumpAndCompareCandidate) {
  const TempFolder folder;
  const std::string dump = (folder.path() / "dump").string();
  EXPECT_EQ(
      run_program_with("verify tiny-llama --tp 2 --dtype bf16 --phase decode --dump " + dump).exit_code,
      0);
  const auto [result, json] = reported("compare tiny-llama --candidate " + dump);
  EXPECT_EQ(result.exit_code, 0) << result.out;
  EXPECT_EQ(json["schema"], "shardcheck.compare/1");
  EXPECT_EQ(json["verdict"], "passed");
  EXPECT_TRUE(json["first"].is_null());
  EXPECT_GT(json["compared"].get<int>(), 100);

  // Exchanged in the manifest: named, exit 1.
  const std::filesystem::path manifest = std::filesystem::path(dump) / "manifest.json";
  Json edited = Json::parse(read_all(manifest));
  std::swap(edited["ranks"][0]["file"], edited["ranks"][1]["file"]);
  std::ofstream(manifest, std::ios::trunc) << edited.dump();
  const auto [exchanged, wrong] = reported("compare tiny-llama --candidate " + dump);
  EXPECT_EQ(exchanged.exit_code, 1);
  EXPECT_EQ(wrong["verdict"], "failed");
  EXPECT_EQ(wrong["first"]["tap"], "embed_tokens.partial");
  EXPECT_EQ(wrong["first"]["ranks"], "all");
  EXPECT_THAT(exchanged.out, HasSubstr("first wrong tap: embed_tokens.partial (all ranks)"));

  // Missing: exit 2, the sentence.
  std::filesystem::remove(std::filesystem::path(dump) / "rank1.safetensors");
  const ProgramResult missing = run_program_with("compare tiny-llama --candidate " + dump);
  EXPECT_EQ(missing.exit_code, 2);
  EXPECT_THAT(missing.err, HasSubstr("the file of rank 0 is missing"));  // rank 0 names that file now
}

TEST(Commands, CostOfAllLinksWithinASecond) {
  const double before = child_seconds();
  const auto [result, json] = reported(
      "cost fixtures/configs/llama-3-70b --tp 1,2,4,8 --phase prefill,decode --batch 1 --seq 4096");
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_LT(child_seconds() - before, 1.0) << "of the processor: others may use it too";
  EXPECT_EQ(json["schema"], "shardcheck.cost/1");
  const std::vector<std::string> links = shipped_names("links");
  EXPECT_GE(links.size(), 30u);
  std::set<std::string> seen;
  for (const Json& row : json["rows"]) {
    if (!row["link"].is_null()) seen.insert(row["link"].get<std::string>());
  }
  for (const std::string& link : links) {
    EXPECT_THAT(result.out, HasSubstr(link));
    EXPECT_EQ(seen.count(link), 1u) << link;
  }
}

// 70 billion parameters on 2 ranks: 161 all_reduces of 4096 x 8192 bf16, one gather of 4096 x 128256; all terms add up and
// no collective is faster than its bandwidth allows.
TEST(Commands, CostRowsAddUp) {
  const auto [result, json] = reported("cost llama-3-70b --tp 2,8 --seq 4096 --batch 1");
  EXPECT_EQ(result.exit_code, 0);
  int rows = 0;
  for (const Json& row : json["rows"]) {
    if (!row["problem"].is_null()) continue;
    ++rows;
    const double ranks = row["mesh"]["tp"].get<double>();
    const double tokens = row["phase"] == "prefill" ? 4096.0 : 1.0;
    double communication = 0.0, bytes = 0.0;
    for (const Json& collective : row["collectives"]) {
      const bool reduce = collective["kind"] == "all_reduce";
      EXPECT_EQ(collective["calls"], reduce ? 161 : 1);
      EXPECT_EQ(collective["payload_bytes"].get<double>(),
                reduce ? 161 * tokens * 8192 * 2 : tokens * 128256 * 2);
      EXPECT_GE(collective["time_s"].get<double>(), collective["bound_s"].get<double>());
      double terms = 0.0;
      for (const Json& term : collective["terms"]) terms += term["time_s"].get<double>();
      expect_equal_sums(collective["time_s"], terms);
      communication += collective["time_s"].get<double>();
      bytes += collective["bytes_per_rank"].get<double>();
    }
    double compute = 0.0;
    for (const Json& term : row["compute_terms"]) compute += term["time_s"].get<double>();
    expect_equal_sums(row["compute_s"], compute);
    expect_equal_sums(row["communication_s"], communication);
    expect_equal_sums(row["total_s"], compute + communication);
    expect_equal_sums(row["share"], communication / (compute + communication));
    expect_equal_sums(row["bytes_per_rank"], bytes);
    EXPECT_EQ(row[row["phase"] == "prefill" ? "ttft_s" : "tpot_s"], row["total_s"]);
    EXPECT_GT(row["memory"]["weights_bytes"].get<double>(), 141e9 / ranks);
    EXPECT_EQ(row["memory"]["fits"], Json(true));
  }
  EXPECT_GT(rows, 100);
}

TEST(Commands, CostOfChosenLinks) {
  const auto [result, json] = reported(
      "cost gpt2-xl --tp 4 --phase decode --seq 128 --link nvlink4-nvswitch3 --link "
      "pcie5-x16,tcp-10g --gpu a100");
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(json["rows"].size(), 3u);
  EXPECT_THAT(result.out, Not(HasSubstr("infini")));
  for (const std::string model : {"llama-3-8b", "llama-2-7b", "mistral-7b", "qwen2-7b", "gpt2",
                                  "gpt2-medium", "gpt2-large", "llama-3.1-405b", "gpt-3-175b"})
    EXPECT_EQ(run_program_with("cost " + model + " --tp 2 --seq 64 --link tcp-10g").exit_code, 0)
        << model;
}

}  // namespace
}  // namespace shardcheck::testing
