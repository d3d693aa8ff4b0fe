// SPDX-License-Identifier: Apache-2.0
// `plan import` and `plan explain` as a user runs them.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/cli/program_run.hpp"

namespace shardcheck::testing {
namespace {

using ::testing::HasSubstr;

constexpr const char* kShipped = "fixtures/imports/hf-tp-plans.json";

TEST(PlanCommand, ImportedPlansAreUsedLikeAnyOther) {
  const TempFolder folder;
  const std::string plan = (folder.path() / "plan.json").string();
  const ProgramResult made = run_program_with(std::string("plan import ") + kShipped +
                                              " --from hf --select Qwen3MoeConfig -o " + plan);
  EXPECT_EQ(made.exit_code, 0) << made.err;
  EXPECT_THAT(made.out,
              HasSubstr("note: layers.*.mlp.experts: \"moe_tp_experts\" can't be checked yet"));
  EXPECT_THAT(made.out, HasSubstr("9 rules for weights, 2 exchanges, 3 kept unchecked"));
  EXPECT_THAT(read_all(plan), HasSubstr("// From hf-tp-plans.json, Qwen3MoeConfig, read as hf."));
  const ProgramResult lint = run_program_with("lint tiny-qwen3 --plan " + plan + " --tp 2");
  EXPECT_EQ(lint.exit_code, 1) << lint.out;  // 10 heads of 5 kv heads: kv head 2 is cut
  EXPECT_THAT(lint.out, HasSubstr("head_is_cut"));
  EXPECT_THAT(lint.out,
              HasSubstr("\"layers.*.mlp.experts\": \"moe_tp_experts\" is kept unchecked"));
}

TEST(PlanCommand, RepairedByHead) {
  const TempFolder folder;
  const std::string plan = (folder.path() / "plan.json").string();
  const ProgramResult made = run_program_with(
      std::string("plan import ") + kShipped +
      " --from hf --select LlamaConfig --model tiny-llama --repair -o " + plan);
  EXPECT_EQ(made.exit_code, 0) << made.err;
  EXPECT_THAT(made.out, HasSubstr("note: repaired: layers.*.self_attn.q_proj"));
  const ProgramResult verify = run_program_with("verify tiny-llama --plan " + plan +
                                                " --tp 3 --dtype f64 --tokens 6");
  EXPECT_EQ(verify.exit_code, 0) << verify.out << verify.err;
}

TEST(PlanCommand, WithoutAFileItIsPrinted) {
  const ProgramResult made = run_program_with(std::string("plan import ") + kShipped +
                                              " --from hf --select Phi3Config --name mine");
  EXPECT_EQ(made.exit_code, 0) << made.err;
  EXPECT_THAT(made.out, HasSubstr("{ \"name\": \"mine\", \"mesh\": [\"tp\"]"));
}

// What the file's head says of an entry stays a comment, whatever the entry's name.
TEST(PlanCommand, ANameOfTwoLinesStaysOneComment) {
  const TempFolder folder;
  const std::string theirs = folder.write("theirs.json", R"({"a\nb": "colwise"})").string();
  const std::string plan = (folder.path() / "plan.json").string();
  EXPECT_EQ(run_program_with("plan import " + theirs + " --from hf -o " + plan).exit_code, 0);
  EXPECT_EQ(run_program_with("lint tiny-llama --tp 2 --plan " + plan).exit_code, 0);
}

TEST(PlanCommand, BadInput) {
  const TempFolder folder;
  const std::string bad = folder
                              .write("bad.json",
                                     "{\"layers.*.self_attn.q_proj\": \"colwise\",\n"
                                     " \"layers.*.self_attn.o_proj\": \"colwise\"}")
                              .string();
  const std::string plan = (folder.path() / "plan.json").string();
  const std::string said = refused("plan import " + bad + " --from hf -o " + plan);
  EXPECT_THAT(said, HasSubstr("bad.json:2:31: "));
  EXPECT_THAT(said, HasSubstr("Write \"rowwise\""));
  EXPECT_FALSE(std::filesystem::exists(plan));
  EXPECT_FALSE(std::filesystem::exists(plan + ".part"));
  EXPECT_THAT(refused("plan import " + bad + " --from jax"),
              HasSubstr("use hf, dtensor, deepspeed, vllm"));
  EXPECT_THAT(refused("plan import " + bad + " --from vllm"), HasSubstr("pass --model"));
  EXPECT_THAT(refused("plan import nowhere.json --from hf"), HasSubstr("nowhere.json"));
  EXPECT_THAT(refused("plan import " + bad), HasSubstr("--from"));
  EXPECT_THAT(refused("plan import " + bad + " --from hf --tp 0"), HasSubstr("--tp"));
  EXPECT_THAT(refused("plan import " + bad + " --from hf -o nowhere/plan.json"),
              HasSubstr("doesn't exist"));
  EXPECT_THAT(refused("plan"), HasSubstr("plan"));
  EXPECT_THAT(refused("plan explain tiny-llama --plan " + bad), HasSubstr("bad.json"));
}

TEST(PlanCommand, Explained) {
  const TempFolder folder;
  const std::string json = (folder.path() / "explained.json").string();
  const ProgramResult told = run_program_with("plan explain llama-3.1-405b --tp 2,8 --json " + json);
  EXPECT_EQ(told.exit_code, 0) << told.err;
  EXPECT_THAT(told.out, HasSubstr("llama-3.1-405b under plan megatron at tp=8"));
  EXPECT_THAT(told.out, HasSubstr("Layers 0-125, 126 alike"));
  EXPECT_THAT(read_all(json), HasSubstr("shardcheck.plan/1"));
}

}  // namespace
}  // namespace shardcheck::testing
