// SPDX-License-Identifier: Apache-2.0
// A user's own op: added to a Registry that is passed in, it runs on every device, and its collectives are recorded.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>

#include "sharded/placement_rules.hpp"
#include "tests/sharded/program_run.hpp"

namespace shardcheck {
namespace {

/// RMSNorm whose ranks share the tokens: each normalises its part, then all gather. x, y [M, D] R.
class SharedNorm final : public Op {
 public:
  explicit SharedNorm(std::atomic<int>& runs) : runs_(runs) {}
  std::string_view name() const override { return "rms_norm"; }

  std::vector<std::int64_t> shapes(const Node&, const Config&, const Module*,
                                   const std::vector<std::int64_t>& inputs) const override {
    return {inputs[0]};
  }
  Placed place(const PlaceQuery& query) const override { return place_statistic(query); }
  Cost cost(const Instruction&, const RankContext&, const std::vector<Extent>& inputs,
            const std::vector<Extent>&) const override {
    return {inputs[0].rows * inputs[0].cols, 0};
  }

  std::vector<Tensor> run(const Instruction& instruction, RankContext& context,
                          const std::vector<Tensor>& inputs) const override {
    ++runs_;
    Communicator& group = context.communicator({0});
    const Partition tokens = Partition::balanced(inputs[0].rows, group.size());
    const Ranges& mine = tokens.of(group.rank());
    const Range rows = mine.empty() ? Range{0, 0} : mine[0];
    const Tensor part = context.device().allocate(context.stream(), inputs[0].dtype, rows.size(), inputs[0].cols);
    context.device().rms_norm(context.stream(), inputs[0].row_range(rows.begin, rows.end),
                              context.weight(instruction.module + ".weight"),
                              instruction.attributes.at("eps"), part);
    Tensor out = context.allocate(instruction.outputs[0]);
    group.all_gather(context.stream(), part, Dim::tokens, tokens, out,
                     {instruction.site, context.step().phase, context.step().index});
    return {out};
  }

 private:
  std::atomic<int>& runs_;
};

TEST(OwnOp, RunsInPlaceOfABuiltInOne) {
  std::atomic<int> runs = 0;
  Registry ops = builtin_ops();
  ops.add(std::make_unique<SharedNorm>(runs));
  const Registry builtin = builtin_ops();
  const Model model = make_model({});
  const std::vector<Step> steps{prefill({5}, 257), {Phase::decode, 0, {{0, 5, 1}}, {42}}};
  const Ran expected = run(model, megatron(), line(4), steps, builtin);
  const Ran own = run(model, megatron(), line(4), steps, ops);
  EXPECT_EQ(runs, 4 * 2 * 5);  // ranks, steps, norms
  for (const auto& [key, parts] : expected.taps->parts()) {
    for (std::size_t rank = 0; rank < 4; ++rank)
      EXPECT_TRUE(parts.ranks[rank].bitwise_equal(own.taps->parts().at(key).ranks[rank]))
          << std::get<2>(key);
  }

  const auto gathers = [](const Ledger& ledger) {
    return std::count_if(ledger.begin(), ledger.end(), [](const LedgerRecord& record) {
      return record.what == "all_gather" && record.site.ends_with("norm");
    });
  };
  EXPECT_EQ(gathers(expected.result.ledgers[0]), 0);
  EXPECT_EQ(gathers(own.result.ledgers[0]), 2 * 5);
  RunSetup shapes;
  shapes.device = "meta";
  shapes.world = "solo";
  EXPECT_EQ(run(model, megatron(), line(4), steps, ops, shapes).result.ledgers, own.result.ledgers);
}

TEST(OwnOp, IsPartOfThePlacementCheck) {
  std::atomic<int> runs = 0;
  Registry ops = builtin_ops();
  ops.add(std::make_unique<SharedNorm>(runs));
  const Program program = program_of(make_model({}), tp_plan(kEmbedCut, ""), line(2), ops);
  ASSERT_FALSE(program.findings.empty());
  EXPECT_EQ(program.findings[0].rule, "partial_into_nonlinear");
  EXPECT_EQ(program.findings[0].op, "rms_norm");
  EXPECT_EQ(runs, 0);
}

}  // namespace
}  // namespace shardcheck
