// SPDX-License-Identifier: Apache-2.0
// A run written as a candidate, to be changed on disk the way a stranger's dump may be wrong.
#pragma once

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "harness/candidate.hpp"
#include "model/safetensors.hpp"
#include "model/shipped.hpp"
#include "tests/harness/ran_program.hpp"
#include "tests/model/temp_folder.hpp"

namespace shardcheck::testing {

/// A run of 14 tokens to be written.
inline RunOf run_in(DType dtype, int tp = 3, Phase phase = Phase::prefill,
                    const std::string& model = "tiny-llama") {
  RunOf what;
  what.model = model;
  what.mesh = Mesh{{{"tp", tp}}};
  what.settings = {dtype, dtype, {}};
  what.phase = phase;
  what.lengths = {14};
  return what;
}

class CandidateFolder {
 public:
  using Tensors = std::map<std::string, HostTensor>;

  explicit CandidateFolder(const RunOf& what) : ran_(run_of(what)) {
    write_candidate(path(), ran_->program, ran_->taps, ran_->sequences);
  }

  std::filesystem::path path() const { return folder_.path() / "dump"; }
  const Model& model() const { return ran_->model; }
  const RanProgram& ran() const { return *ran_; }

  nlohmann::ordered_json manifest() const {
    return nlohmann::ordered_json::parse(read_text(path() / "manifest.json"));
  }
  void write_manifest(const std::string& text) const {
    std::filesystem::remove(path() / "manifest.json");
    std::ofstream(path() / "manifest.json") << text;
  }
  template <typename Change>
  void change_manifest(Change change) const {
    nlohmann::ordered_json json = manifest();
    change(json);
    write_manifest(json.dump());
  }

  std::filesystem::path file(int rank) const {
    return path() / ("rank" + std::to_string(rank) + ".safetensors");
  }
  Tensors tensors(int rank) const {
    const SafetensorsFile opened = SafetensorsFile::open(file(rank));
    Tensors all;
    for (const std::string& name : opened.names()) {
      // A copy: the file that it was mapped from is rewritten.
      const HostTensor mapped = opened.tensor(name);
      HostTensor copy(mapped.dtype(), mapped.shape());
      if (mapped.bytes() > 0) std::copy_n(mapped.data(), mapped.bytes(), copy.mutable_data());
      all.emplace(name, copy);
    }
    return all;
  }
  void write(int rank, const Tensors& tensors) const {
    const std::vector<std::pair<std::string, HostTensor>> list(tensors.begin(), tensors.end());
    write_safetensors(file(rank), list);
  }
  template <typename Change>
  void change_file(int rank, Change change) const {
    Tensors all = tensors(rank);
    change(all);
    write(rank, all);
  }
  /// Numbers of one tensor of one rank; `change` gets them row-major.
  template <typename Change>
  void change_tensor(int rank, const std::string& name, Change change) const {
    change_file(rank, [&](Tensors& all) {
      const HostTensor old = all.at(name);
      std::vector<double> values = old.to_f64();
      change(values);
      all.at(name) = round_to(old.dtype(), old.shape(), values);
    });
  }

  Candidate read(const CandidateOptions& options = {}) const {
    return read_candidate(model(), parts_.ops, path(), options);
  }
  CandidateReport compare(const CandidateOptions& options = {}) const {
    return compare_candidate(model(), read(options), parts_);
  }

 private:
  TempFolder folder_;
  VerifyParts parts_ = builtin_parts();
  std::unique_ptr<RanProgram> ran_;
};

inline std::string describe(const CandidateReport& report) {
  std::string text = report.passed() ? "passed" : "failed";
  if (report.first) {
    text += ": " + report.first->tap + " by " + std::string(name(report.first->gate)) + ", ranks";
    for (const int rank : report.first->ranks) text += " " + std::to_string(rank);
    text += "; " + report.first->cause;
  }
  for (const std::string& sentence : report.mistrust) text += "\nmistrusted " + sentence;
  return text;
}

inline void expect_first(const CandidateReport& report, const std::string& tap,
                         const std::vector<int>& ranks) {
  EXPECT_FALSE(report.passed());
  ASSERT_TRUE(report.first.has_value()) << describe(report);
  EXPECT_EQ(report.first->tap, tap) << describe(report);
  EXPECT_EQ(report.first->ranks, ranks) << describe(report);
}

}  // namespace shardcheck::testing
