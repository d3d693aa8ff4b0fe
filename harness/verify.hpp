// SPDX-License-Identifier: Apache-2.0
// `shardcheck verify`: every cell (mesh, precision, phase) of a plan on a model, through all gates.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "harness/diagnose/diagnose.hpp"
#include "harness/audit.hpp"
#include "harness/end_to_end.hpp"
#include "harness/inputs.hpp"
#include "harness/judge.hpp"
#include "harness/local/local_op.hpp"
#include "harness/mistrust.hpp"
#include "model/model.hpp"
#include "sharded/plan.hpp"
#include "sharded/runner.hpp"

namespace shardcheck {

struct VerifyOptions {
  std::vector<Mesh> meshes;
  std::vector<DType> dtypes;  // storage
  std::optional<DType> wire;  // of reductions; default: the storage dtype
  ReduceSpec reduction;
  std::vector<Phase> phases;
  InputOptions inputs;
  std::string device = "cpu";
  std::string world;  // kind of communicator; empty: what suits the device and the way the program was started
  bool force = false;          // run a plan that breaks placement rules
  bool fuse = false;           // run the fused program (sharded/fusion.hpp); it is judged as the plan's own
  std::filesystem::path dump;  // write every cell's taps here
  /// Meshes whose vocabulary borders generated ids hold; empty: `meshes`. A repeated cell names those of the run that
  /// it repeats, so that it sees the same ids.
  std::vector<Mesh> id_meshes;
  std::string repro;  // command line without meshes, dtype and phase; empty: cells have none
  int threads = 2;             // of the judge and of loading weights
  bool diagnose = true;        // name the cause of a failure, and where the values leave the reference
  /// Planted faults: asked for each cell; null: none.
  std::function<std::unique_ptr<Interposer>(const Program&, const RunSettings&, Phase)> fault;
  /// Planted faults of the sharded programs (more than one rank), never of the unsharded one: applied after the plan was
  /// resolved, and after the program was built. Null: none.
  std::function<void(ResolvedPlan&)> edit_plan;
  std::function<void(Program&)> edit_program;
  /// What is going on, and the fraction done in [0, 1].
  std::function<void(const std::string& what, double done)> progress;
};

/// What a cell runs on and is judged with: which kinds of device, communicator, op and local check there are.
struct VerifyParts {
  DeviceRegistry devices;
  WorldRegistry worlds;
  Registry ops;
  LocalOps local_ops;  // how each op is recomputed for gate G3
  OpExchanges exchanges = {};  // what a plan's own ops send, in closed form, for the audit
};
VerifyParts builtin_parts();

enum class Verdict { passed, failed, mistrusted, skipped };
std::string_view name(Verdict verdict);

/// The gates in the order they are printed.
enum class Gate { g0, audit, g1, g2, g3, g4, g5 };
inline constexpr Gate kGates[] = {Gate::g0, Gate::audit, Gate::g1, Gate::g2,
                                  Gate::g3, Gate::g4,    Gate::g5};
std::string_view name(Gate gate);         // "G0", "audit", ...
std::string_view description(Gate gate);  // "wiring, bitwise"

struct GateResult {
  bool ran = false;
  bool passed = false;
  std::optional<double> margin;  // limit / measured; none for bitwise gates
};

/// Where the values themselves first leave the reference's: earlier or later than the first op that is wrong by its own
/// inputs, since an error grows on its way and a wrong share of a sum shows in the sum.
struct Propagated {
  std::string tap;
  Phase phase = Phase::prefill;
  int step = 0;
  std::vector<int> ranks;  // empty: a sum that is wrong as a whole
  double error = 0.0;      // relative, of the assembled value
  double limit = 0.0;      // f64: G2's; else four times that of unsharded runs in the same precision
};

/// Where a cell first goes wrong, in program order, when each op is given its own inputs.
struct FirstFailure {
  Gate gate = Gate::g3;
  std::string tap;
  Phase phase = Phase::prefill;
  int step = 0;
  std::vector<int> ranks;
  bool all_ranks = false;
  std::int64_t row = -1, feature = -1;              // in the whole value; -1: not an element
  std::int64_t local_row = -1, local_feature = -1;  // in the rank's part
  double got = std::numeric_limits<double>::quiet_NaN();
  double expected = std::numeric_limits<double>::quiet_NaN();
  std::string cause_name;  // one of harness/diagnose/causes.hpp; empty: no diagnosis was made
  std::string cause;       // a sentence with its evidence, or empty
  std::optional<Residual> residual;  // what the cause leaves unexplained, in units of the op's error budget
  std::vector<std::string> also;     // names of other causes that fit the numbers as well
  std::optional<Propagated> propagated;
};

struct CellReport {
  Mesh mesh;
  DType dtype = DType::f32, wire = DType::f32;
  Phase phase = Phase::prefill;
  Verdict verdict = Verdict::failed;
  std::map<Gate, GateResult> gates;
  std::optional<FirstFailure> first;
  std::optional<TapScore> worst;  // the smallest margin over all taps and ranks
  EndToEnd logits;
  std::vector<std::string> mistrust;
  std::int64_t collectives = 0, payload_bytes = 0;  // of one rank, whole cell
  std::string repro;
};

struct VerifyReport {
  std::string model, plan;
  std::vector<Finding> findings;  // placement rules that the plan breaks; without force nothing was run
  bool ran = true;
  bool judged = true;  // false in a process that only ran its rank under mpirun: another one has the results
  std::vector<CellReport> cells;
  std::vector<std::string> notes;
  std::map<std::string, std::string> arithmetic;  // per dtype, as the device states it
  std::size_t count(Verdict verdict) const;
  bool passed() const;
};

/// Throws InputError before anything runs if a mesh, id or option can't work.
VerifyReport verify(const Model& model, const Plan& plan, const VerifyOptions& options,
                    const VerifyParts& parts);

/// Aligned table, failures in words, and a last line "N passed, N failed".
std::string verify_table(const VerifyReport& report, bool color);
/// Schema "shardcheck.verify/1"; numbers that aren't finite are the strings "nan", "inf" and "-inf".
std::string verify_json(const VerifyReport& report);

}  // namespace shardcheck
