// SPDX-License-Identifier: Apache-2.0
// Stages whose programs are scripts that misbehave.
#include "tests/bundle/stages.hpp"

#include <gmock/gmock.h>

#include "tests/bundle/bundle_folder.hpp"
#include "tests/bundle/process.hpp"
#include "tests/bundle/report.hpp"

namespace shardcheck::bundle {
namespace {

using testing::HasSubstr;

/// Writes what a GoogleTest program would, to the file of its --gtest_output=json:FILE.
std::string writes_report(const std::string& test) {
  return R"(for word; do case $word in --gtest_output=json:*) file=${word#*:} ;; esac; done
cat >"$file" <<'END'
{"testsuites": [{"name": "Linear", "testsuite": [{"name": "Fits", "status": "RUN", )" +
         test + "}]}]}\nEND\n";
}
const char* const kPassed = R"("result": "COMPLETED")";
const char* const kFailed = R"("result": "COMPLETED", "failures": [{"failure": "no"}])";

class StagesTest : public testing::Test {
 protected:
  Outcome run(const std::string& gpu_tests, double seconds = 20.0) {
    folder_.program("gpu_tests", gpu_tests);
    const Stage kernels = stages_of(bundle_).front();
    EXPECT_EQ(kernels.name, "kernels");
    return run_stage(kernels, bundle_, seconds);
  }

  BundleFolder folder_;
  const Bundle bundle_{folder_.path(), folder_.path() / "work", "cuda"};
};

TEST_F(StagesTest, PassWhereExitCodeAndReportAgree) {
  const Outcome outcome = run(writes_report(kPassed));
  EXPECT_EQ(outcome.status, Status::passed) << outcome.reason;
  EXPECT_EQ(outcome.summary, "1 tests");
}

TEST_F(StagesTest, FailWithTheReasonAndTheEndOfTheOutput) {
  const Outcome failed = run(writes_report(kFailed) + "echo the worst tap is this; exit 1");
  EXPECT_EQ(failed.status, Status::failed);
  EXPECT_THAT(failed.reason, HasSubstr("Linear.Fits"));
  EXPECT_THAT(failed.reason, HasSubstr("the worst tap is this"));
}

TEST_F(StagesTest, AGoodReportDoesNotExcuseABadEnd) {
  EXPECT_THAT(run(writes_report(kPassed) + "exit 3").reason,
              HasSubstr("gpu_tests ended with exit code 3"));
  EXPECT_THAT(run(writes_report(kPassed) + "kill -SEGV $$").reason, HasSubstr("signal 11"));
}

TEST_F(StagesTest, AGoodEndDoesNotExcuseAMissingReport) {
  EXPECT_THAT(run("exit 0").reason, HasSubstr("kernels.json was not written"));
}

TEST_F(StagesTest, AHungProgramIsEnded) {
  const Outcome outcome = run("exec sleep 60", 1.2);
  EXPECT_EQ(outcome.status, Status::failed);
  EXPECT_THAT(outcome.reason, HasSubstr("still running after 1 s"));
  EXPECT_LT(outcome.seconds, 20.0);
}

TEST_F(StagesTest, WithoutTimeNothingIsRun) {
  const Outcome outcome = run(writes_report(kPassed), 0.5);
  EXPECT_EQ(outcome.status, Status::not_run);
  EXPECT_EQ(outcome.reason, "no time was left");
}

TEST_F(StagesTest, AProgramThatIsNotThereHasFailed) {
  const Stage stage{
      "x", "", 5.0, {{(folder_.path() / "bin/absent").string()}}, [] { return Figures{}; }, ""};
  EXPECT_THAT(run_stage(stage, bundle_, 5.0).reason, HasSubstr("absent ended with exit code 127"));
}

TEST_F(StagesTest, SmolLm2IsSkippedUnlessItsFileIsThere) {
  const auto smollm2 = [&] {
    for (Stage& stage : stages_of(bundle_)) {
      if (stage.name == "verify SmolLM2-135M") return stage;
    }
    return Stage{};
  };
  EXPECT_EQ(run_stage(smollm2(), bundle_, 5.0).status, Status::skipped);
  folder_.write("SmolLM2-135M-Instruct.Q4_1.gguf", "weights");
  EXPECT_EQ(smollm2().skipped, "");
}

TEST_F(StagesTest, LimitsOfAFullRunFitTheirTests) {
  for (const Stage& stage : stages_of(bundle_)) {
    EXPECT_GT(stage.limit, 1.0) << stage.name;
    EXPECT_LE(stage.limit, 120.0) << stage.name;
    EXPECT_FALSE(stage.about.empty()) << stage.name;
  }
}

TEST(ReportTest, PassesOnlyIfSomethingRanAndNothingWasLeftOut) {
  Report report;
  const auto add = [&](Status status) {
    report.stages.push_back({Stage{}, Outcome{status, 0.0, "", "", {}}});
  };
  EXPECT_FALSE(report.passed());
  add(Status::skipped);
  EXPECT_FALSE(report.passed());
  add(Status::passed);
  EXPECT_TRUE(report.passed());
  EXPECT_EQ(report_json(report)["summary"],
            Json({{"passed", 1}, {"failed", 0}, {"skipped", 1}, {"not_run", 0}}));
  add(Status::not_run);
  EXPECT_FALSE(report.passed());
  report.stages.back().second.status = Status::failed;
  EXPECT_FALSE(report.passed());
}

}  // namespace
}  // namespace shardcheck::bundle
