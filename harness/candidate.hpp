// SPDX-License-Identifier: Apache-2.0
// A run from outside: a directory with manifest.json and one safetensors file per rank (schema "shardcheck.taps/1").
// `verify --dump` writes it, `compare --candidate` judges it.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "harness/inputs.hpp"
#include "harness/judge.hpp"
#include "harness/run.hpp"
#include "harness/verify.hpp"

namespace shardcheck {

/// Writes a run's taps. Each file appears whole or not at all; the manifest comes last.
void write_candidate(const std::filesystem::path& folder, const Program& program, const TapRun& run,
                     const Sequences& sequences);

struct Candidate {
  std::string folder;  // as named in messages
  TapRun run;
  Sequences sequences;
  Program program;  // the model's ops with the candidate's placements, so that each op can be judged from its inputs
  std::int64_t unknown = 0;  // tensors that are no tap of the model
};

struct CandidateOptions {
  bool allow_unknown = false;  // --allow-unknown: count tensors that the model doesn't have
};

/// Throws InputError (exit 2): no manifest, an unknown word, a rank without a file, an id outside the vocabulary, a tap
/// that the model doesn't have (with the nearest), ranges that leave a gap, a tensor that no step has.
Candidate read_candidate(const Model& model, const Registry& ops,
                         const std::filesystem::path& folder, const CandidateOptions& options = {});

/// One tap of a candidate against the reference.
struct CandidateRow {
  std::string tap;
  Phase phase = Phase::prefill;
  int step = 0;
  int order = 0;         // in the program
  double rel_fro = 0.0;  // of the assembled value, against the reference
  /// f64: G2's; else 4 times that of the unsharded run in the candidate's dtype, plain or with its sums.
  double limit = 0.0;
  std::vector<int> ranks;  // that fail
  std::string problem;     // empty, or what is wrong besides the number
  bool unknown = false;    // the problem is that the reference has no such value
  bool passed() const { return problem.empty() && rel_fro <= limit; }  // NaN fails
};

struct CandidateReport {
  Mesh mesh;
  std::vector<CandidateRow> rows;  // every tap of every step that was compared
  std::vector<TapScore> scores;    // ops that could be judged from their own inputs (G3)
  std::int64_t compared = 0, unknown = 0;
  std::optional<FirstFailure> first;  // in program order
  std::vector<std::string> mistrust;
  bool passed() const;
};

/// Coverage and shapes, NaN, replicas bitwise equal, assembled values against the reference with 4 times the error of
/// the unsharded run on `parts`' cpu device (in f64 with G2's limit), and G3 where an op's inputs are taps too.
CandidateReport compare_candidate(const Model& model, const Candidate& candidate,
                                  const VerifyParts& parts);

std::string candidate_table(const CandidateReport& report);
std::string candidate_json(const CandidateReport& report);

/// Vocabulary rows of every rank, by embedding: what its partial sums are of.
using TableRows = std::map<std::string, std::vector<Ranges>, std::less<>>;

/// The model's ops over the candidate's mesh, with the placements that the candidate's taps have: an instruction for
/// every op, and the collectives that must lie between X.partial, X.reduced and X. A table that isn't in `rows` is cut
/// balanced where its output is partial.
Program candidate_program(const Model& model, const Registry& ops, const Mesh& mesh,
                          const std::map<std::string, Layout, std::less<>>& layouts,
                          const TableRows& rows = {});

}  // namespace shardcheck
