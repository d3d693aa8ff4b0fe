// SPDX-License-Identifier: Apache-2.0
// What counts as passed, by report; every way in which one is not is planted.
#include "tests/bundle/figures.hpp"

#include <gmock/gmock.h>

#include "tests/bundle/bundle_folder.hpp"

namespace shardcheck::bundle {
namespace {

using testing::HasSubstr;

std::string one_test(const std::string& fields) {
  return R"({"testsuites": [{"name": "Linear", "testsuite": [{"name": "Fits", )" + fields +
         R"(}, {"name": "Other",
      "status": "NOTRUN", "result": "SUPPRESSED"}]}]})";
}

TEST(TestFigures, PassOnlyWhatWasRunAndPassed) {
  const BundleFolder folder;
  const auto problem = [&](const std::string& text) {
    return test_figures(folder.write("report.json", text)).problem;
  };
  EXPECT_EQ(problem(one_test(R"("status": "RUN", "result": "COMPLETED")")), "");
  EXPECT_THAT(
      problem(one_test(R"("status": "RUN", "result": "COMPLETED", "failures": [{"failure": "no"}])")),
      HasSubstr("1 of 1 tests failed: Linear.Fits"));
  EXPECT_THAT(problem(one_test(R"("status": "RUN", "result": "SKIPPED")")),
              HasSubstr("skipped: Linear.Fits"));
  EXPECT_EQ(problem(one_test(R"("status": "NOTRUN", "result": "SUPPRESSED")")), "no test was run");
  EXPECT_EQ(problem(R"({"testsuites": []})"), "no test was run");
}

TEST(TestFigures, AMissingOrBrokenReportThrows) {
  const BundleFolder folder;
  EXPECT_THROW(test_figures(folder.path() / "absent.json"), std::exception);
  EXPECT_THROW(test_figures(folder.write("cut.json", R"({"testsuites": [)")), std::exception);
  EXPECT_THROW(test_figures(folder.write("other.json", R"({"tests": 3})")), std::exception);
}

std::string cell(const std::string& verdict, const std::string& margin) {
  return R"({"verdict": ")" + verdict +
         R"(", "repro": "shardcheck verify tiny --tp 2", "gates": {"G0": {"ran": true,
      "passed": true, "margin": null}, "G3": {"ran": true, "passed": true, "margin": )" +
         margin + R"(}, "G4": {"ran": true, "passed": true, "margin": 3.0}}})";
}
std::string verify_report(const std::string& cells) {
  return R"({"schema": "shardcheck.verify/1", "cells": [)" + cells + "]}";
}

TEST(VerifyFigures, EveryCellMustBeThereAndPass) {
  const BundleFolder folder;
  const auto of = [&](const std::string& cells, std::size_t count) {
    return verify_figures(folder.write("verify.json", verify_report(cells)), count);
  };
  const Figures good = of(cell("passed", "1.25") + "," + cell("passed", "\"inf\""), 2);
  EXPECT_EQ(good.problem, "");
  EXPECT_EQ(good.values["smallest_margin"]["G3"], 1.25);
  EXPECT_EQ(good.values["smallest_margin"]["G4"], 3.0);
  EXPECT_THAT(good.summary, HasSubstr("2 of 2 cells, smallest margin 1.25x (G3)"));
  EXPECT_THAT(of(cell("passed", "2"), 2).problem, HasSubstr("1 cells were run, not 2"));
  EXPECT_THAT(of(cell("failed", "0.5"), 1).problem,
              HasSubstr("failed; shardcheck verify tiny --tp 2"));
  EXPECT_THAT(of(cell("mistrusted", "2"), 1).problem, HasSubstr("mistrusted"));
  EXPECT_NE(of("", 0).problem, "");
  const Figures nan = of(cell("passed", "\"nan\"") + "," + cell("passed", "2"), 2);
  EXPECT_EQ(nan.values["smallest_margin"]["G3"], "nan");
  EXPECT_THROW(
      verify_figures(folder.write("v.json", R"({"schema": "shardcheck.cost/1", "cells": []})"), 1),
      std::exception);
}

TEST(BenchmarkFigures, HoldRatesAndCeilings) {
  const BundleFolder folder;
  const auto of = [&](const std::string& runs) {
    return benchmark_figures(
        folder.write("bench.json", R"({"context": {"date": "x", "ceiling_copy_B/s": "4.0e+12",
        "ceiling_linear_bf16_flop/s": "7e+14", "ceiling_linear_f32_flop/s": "5e+13"}, "benchmarks": [)" +
                                       runs + "]}"));
  };
  const std::string add = R"({"run_name": "add/f32/iterations:4/manual_time", "real_time": 2.5, "B/s": 3e12, "of_ceiling": 0.75})";
  const Figures good = of(add);
  EXPECT_EQ(good.problem, "");
  EXPECT_EQ(good.summary, "copy 4 TB/s, linear 700 Tflop/s; 1 kernels at 75 to 75 % of these");
  EXPECT_EQ(good.values["kernels"]["add/f32"]["of_ceiling"], 0.75);
  EXPECT_EQ(of("").problem, "no kernel was measured");
  EXPECT_THAT(of(add + R"(, {"run_name": "rope/f32", "error_occurred": true})").problem,
              HasSubstr("rope/f32"));
}

TEST(SameFiles, AnyDifferenceIsSeen) {
  const BundleFolder folder;
  const auto problem = [&] { return same_files(folder.path() / "a", folder.path() / "b").problem; };
  std::filesystem::create_directories(folder.path() / "a");
  std::filesystem::create_directories(folder.path() / "b");
  EXPECT_EQ(problem(), "no taps were written");
  folder.write("a/tp-2/rank0", "taps");
  EXPECT_THAT(problem(), HasSubstr("other files"));
  folder.write("b/tp-2/rank0", "taps");
  EXPECT_EQ(problem(), "");
  folder.write("b/tp-2/rank0", "tapr");
  EXPECT_THAT(problem(), HasSubstr("other bits in tp-2/rank0"));
}

}  // namespace
}  // namespace shardcheck::bundle
