// SPDX-License-Identifier: Apache-2.0
#include "harness/verify.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "harness/assess.hpp"
#include "harness/candidate.hpp"
#include "harness/quantisation_groups.hpp"
#include "harness/locate.hpp"
#include "harness/wiring_parcel.hpp"
#include "harness/yardstick.hpp"
#include "model/error.hpp"
#include "sharded/comm/launch.hpp"
#include "sharded/fusion.hpp"

namespace shardcheck {
namespace {

/// Taps that are held at once before they are judged: with the weights in f64 a run on SmolLM2 stays below 3 GB.
constexpr std::size_t kTapBytesAtOnce = std::size_t{256} << 20;

class Verification {
 public:
  Verification(const Model& model, const Plan& plan, const VerifyOptions& options,
               const VerifyParts& parts)
      : model_(model), plan_(plan), options_(options), parts_(parts) {}

  VerifyReport run() {
    report_.model = model_.config().name;
    report_.plan = plan_.name;
    const bool processes = options_.world.empty() || options_.world.starts_with("mpi");
    launch_ = processes ? detect_launch() : Launch{};
    report_.judged = launch_.process == 0;
    build_programs();
    if (!report_.findings.empty() && !options_.force) {
      report_.ran = false;
      return std::move(report_);
    }
    prepare_inputs();
    open_devices();
    if (!devices_.front()->has_values()) {
      throw InputError(fmt::format(
          "--device {}: it has no values to compare; use cost for shapes alone", options_.device));
    }
    progress("reference", 0.0);
    if (report_.judged) reference_ = reference_logits(model_, sequences_);
    const auto groups = static_cast<double>(options_.dtypes.size() * options_.phases.size());
    double done = 0.0;
    for (const DType dtype : options_.dtypes) {
      note_arithmetic(dtype);
      WeightStore weights(model_, dtype);
      progress(fmt::format("{} weights", name(dtype)), done / groups);
      weights.load_all(options_.threads);
      inspected_.clear();
      for (const Phase phase : options_.phases) {
        run_group(dtype, phase, weights);
        done += 1.0;
        progress(fmt::format("{} {}", name(dtype), name(phase)), done / groups);
      }
    }
    sort_cells();
    return std::move(report_);
  }

 private:
  void progress(const std::string& what, double done) {
    if (options_.progress && report_.judged) options_.progress(what, done);
  }

  void build_programs() {
    for (const Mesh& mesh : options_.meshes) {
      programs_.push_back(std::make_unique<Program>(sharded_program(mesh)));
      for (const Finding& finding : programs_.back()->findings) {
        const auto same = [&](const Finding& f) {
          return f.rule == finding.rule && f.tap == finding.tap;
        };
        if (std::none_of(report_.findings.begin(), report_.findings.end(), same))
          report_.findings.push_back(finding);
      }
    }
    // The yardstick is always run: the same plan on one rank.
    for (const auto& program : programs_) {
      if (program->mesh.ranks() == 1) single_ = program.get();
    }
    if (single_ == nullptr) {
      Mesh one = options_.meshes.front();
      for (Mesh::Axis& axis : one.axes) axis.size = 1;
      own_single_ = std::make_unique<Program>(
          build_program(model_, resolve(plan_, model_, one), parts_.ops));
      single_ = own_single_.get();
    }
    note_groups();
    if (options_.fuse) fuse_programs();
  }

  Program sharded_program(const Mesh& mesh) const {
    ResolvedPlan plan = resolve(plan_, model_, mesh);
    const bool sharded = mesh.ranks() > 1;
    if (sharded && options_.edit_plan) options_.edit_plan(plan);
    Program program = build_program(model_, plan, parts_.ops);
    if (sharded && options_.edit_program) options_.edit_program(program);
    return program;
  }

  void fuse_programs() {
    const auto add = [this](const Program& program) {
      fused_[&program] = std::make_unique<Program>(fuse(program, parts_.ops));
    };
    for (const auto& program : programs_) add(*program);
    if (own_single_) add(*own_single_);
    std::map<std::string, std::vector<std::string>> where;
    for (const auto& program : programs_) {
      for (const Phase phase : options_.phases) {
        const std::vector<Instruction>& plain = program->instructions.at(phase);
        const auto adds = std::count_if(plain.begin(), plain.end(), [](const Instruction& i) {
          return i.op != nullptr && i.op->name() == "add";
        });
        where[fmt::format("{} of {} residual adds are one op with the RMSNorm that reads the sum",
                          fused_instructions(executed(*program), phase), adds)]
            .push_back(fmt::format("{} {}", to_string(program->mesh), name(phase)));
      }
    }
    for (const auto& [words, cells] : where) {
      report_.notes.push_back(where.size() == 1 ? words
                                                : fmt::format("{}: {}", fmt::join(cells, ", "), words));
    }
  }

  /// What is run in a program's place.
  const Program& executed(const Program& program) const {
    const auto found = fused_.find(&program);
    return found == fused_.end() ? program : *found->second;
  }

  /// Says which cuts go through a quantisation group: legal here, since weights are dequantised when loaded.
  void note_groups() {
    for (const auto& program : programs_) {
      for (const Finding& finding : quantisation_groups(model_, program->plan)) {
        report_.notes.push_back(fmt::format("{}: {} cuts {} inside a group: {}", to_string(program->mesh),
                                            plan_.name, finding.tap, finding.sentence));
        break;  // one note per mesh
      }
    }
  }

  void prepare_inputs() {
    std::vector<const Program*> programs;
    std::vector<std::unique_ptr<Program>> others;
    for (const Mesh& mesh : options_.id_meshes) {
      others.push_back(
          std::make_unique<Program>(build_program(model_, resolve(plan_, model_, mesh), parts_.ops)));
      programs.push_back(others.back().get());
    }
    if (programs.empty()) {
      for (const auto& program : programs_) programs.push_back(program.get());
    }
    sequences_ = make_sequences(options_.inputs, model_.config(), programs);
    for (const Phase phase : options_.phases) {
      steps_[phase] = phase == Phase::prefill ? prefill_steps(sequences_, options_.inputs.chunk)
                                              : decode_steps(sequences_, options_.inputs);
    }
  }

  void note_arithmetic(DType dtype) {
    const Arithmetic a = devices_.front()->arithmetic(Primitive::linear, dtype);
    report_.arithmetic[std::string(name(dtype))] = fmt::format(
        "{} accumulate, {} fraction bits, {}{}, softmax weights {}", name(a.accumulate),
        a.fraction_bits, a.truncating ? "truncating" : "round to nearest even",
        a.block_k > 0 ? fmt::format(", {} products at once", a.block_k) : "",
        devices_.front()->arithmetic(Primitive::attention, dtype).rounds_softmax_weights
            ? "rounded to storage"
            : "kept");
  }

  RunSettings settings(DType storage) const {
    ReduceSpec reduction = options_.reduction;
    return {storage, options_.wire.value_or(storage), reduction};
  }

  /// One device for each rank where there are as many, else one for all. Where ranks are processes, this one's own.
  void open_devices() {
    int most_ranks = 1;
    for (const Mesh& mesh : options_.meshes) most_ranks = std::max(most_ranks, mesh.ranks());
    devices_ = parts_.devices.make_for(options_.device, launch_.several() ? launch_.local_processes : most_ranks);
    for (const auto& device : devices_) device_pointers_.push_back(device.get());
    const int count = static_cast<int>(devices_.size());
    world_ = options_.world.empty() ? default_world(options_.device, count, most_ranks) : options_.world;
    if (world_ == "threads") device_pointers_.resize(1);  // whose memory all ranks reach
    if (!launch_.several()) return;
    device_pointers_ = {device_pointers_[static_cast<std::size_t>(launch_.local_process % count)]};
    for (const Mesh& mesh : options_.meshes) parts_.worlds.make(world_, mesh);  // enough processes, or an InputError
  }

  std::span<Device* const> devices_for(const Mesh& mesh) const {
    const std::span<Device* const> all(device_pointers_);
    return all.size() == 1 ? all : all.first(static_cast<std::size_t>(mesh.ranks()));
  }

  CellRun run_cell(const Program& program, const RunSettings& settings, Phase phase,
                   WeightStore& weights, std::unique_ptr<Interposer> interposer) {
    CellRun cell;
    cell.program = &program;
    cell.executed = &executed(program);
    cell.settings = settings;
    cell.steps = steps_.at(phase);
    std::unique_ptr<World> world = parts_.worlds.make(world_, program.mesh);
    for (const std::string& note : world->notes()) {
      if (std::find(report_.notes.begin(), report_.notes.end(), note) == report_.notes.end()) report_.notes.push_back(note);
    }
    TapCollector collector(program, settings, cell.steps);
    RunOptions run;
    run.taps = &collector;
    run.check_wiring = true;
    run.interposer = interposer.get();
    // Shards don't depend on the phase: one inspection serves both, unless a fault may differ.
    WeightInspector inspector(weights);
    const bool inspect = inspected_.count(&program) == 0 || options_.fault != nullptr;
    if (inspect) run.inspect = [&](RankContext& context) { inspector.inspect(context); };
    cell.result = run_program(*cell.executed, *world, devices_for(program.mesh), weights, settings, cell.steps, run);
    if (inspect) inspected_[&program] = faults_of_all(*world, inspector.faults());
    cell.weight_faults = inspected_[&program];
    cell.taps = collector.release();
    return cell;
  }

  static std::vector<WiringFault> faults_of_all(World& world, const std::vector<WiringFault>& own) {
    std::vector<WiringFault> all;
    for (const std::string& bytes : world.gather(pack_faults(own))) {
      for (WiringFault& fault : unpack_faults(bytes)) all.push_back(std::move(fault));
    }
    return all;
  }

  /// All meshes of one precision and phase. They are judged together, so that a block of weights is read once for all,
  /// but in several lots where their taps would fill the memory.
  void run_group(DType dtype, Phase phase, WeightStore& weights) {
    const RunSettings wanted = settings(dtype);
    const EndToEnd yardstick = plain_yardstick(wanted, phase, weights);
    std::vector<CellRun> lot;
    std::size_t bytes = 0;
    for (std::size_t i = 0; i < programs_.size(); ++i) {
      const Program& program = *programs_[i];
      progress(fmt::format("{} {} {}", to_string(program.mesh), name(dtype), name(phase)), -1.0);
      const bool kept = &program == single_ && single_run_.has_value();
      lot.push_back(
          kept ? std::move(*single_run_)
               : run_cell(program, wanted, phase, weights, fault_for(program, wanted, phase)));
      if (kept) single_run_.reset();
      bytes += tap_bytes(lot.back().taps);
      if (bytes < kTapBytesAtOnce && i + 1 < programs_.size()) continue;
      judge_lot(lot, phase, yardstick, weights);
      lot.clear();
      bytes = 0;
    }
  }

  void judge_lot(const std::vector<CellRun>& lot, Phase phase, const EndToEnd& yardstick,
                 WeightStore& weights) {
    if (!report_.judged) return;
    std::vector<JudgeCell> judged;
    for (const CellRun& cell : lot) judged.push_back({cell.program, &cell.taps});
    progress(fmt::format("judging {} {}", name(lot.front().settings.storage), name(phase)), -1.0);
    JudgeOptions judge;
    judge.arithmetic = [this](Primitive primitive, DType storage) {
      return devices_.front()->arithmetic(primitive, storage);
    };
    judge.threads = options_.threads;
    judge.ops = &parts_.local_ops;
    const std::vector<std::vector<TapScore>> scores = judge_local(model_, judged, judge);
    const DiagnoseOptions diagnosis{judge.arithmetic, judge.ops, false};
    for (std::size_t i = 0; i < lot.size(); ++i) {
      Measures measures{reference_, scores[i], yardstick,
                        [&] { return split_yardstick(lot[i], phase, weights); }};
      if (options_.diagnose) {
        measures.diagnose = &diagnosis;
        measures.propagated = [&] {
          return first_propagated(
              Locator({&model_, lot[i].program, &lot[i].taps, &sequences_}, parts_).rows());
        };
      }
      report_.cells.push_back(assess(model_, parts_, lot[i], phase, measures));
      report_.cells.back().repro = repro(report_.cells.back());
      if (!options_.dump.empty()) dump(lot[i], phase);
    }
  }

  std::unique_ptr<Interposer> fault_for(const Program& program, const RunSettings& wanted,
                                        Phase phase) const {
    return options_.fault ? options_.fault(program, wanted, phase) : nullptr;
  }

  static std::size_t tap_bytes(const TapRun& run) {
    std::size_t bytes = 0;
    for (const StepTaps& step : run.steps) {
      for (const TapValue& value : step.values) {
        std::vector<const std::byte*> seen;  // replicas share their bytes
        for (const HostTensor& tensor : value.ranks) {
          if (std::find(seen.begin(), seen.end(), tensor.data()) != seen.end()) continue;
          seen.push_back(tensor.data());
          bytes += tensor.bytes();
        }
      }
    }
    return bytes;
  }

  /// Logits of the TP 1 run in the coarser of storage and wire dtype. Where that is a cell too, the run is kept for it.
  EndToEnd plain_yardstick(const RunSettings& wanted, Phase phase, WeightStore& weights) {
    if (!report_.judged) return {};
    const DType dtype = coarser(wanted.storage, wanted.wire);
    const bool is_cell = own_single_ == nullptr && dtype == wanted.storage && !options_.fault;
    CellRun run = run_single(dtype, is_cell ? wanted : RunSettings{dtype, dtype, wanted.reduction},
                             phase, weights, nullptr);
    const EndToEnd result = end_to_end(run.taps, logits_tap(*single_, phase), reference_, nullptr);
    if (is_cell) single_run_ = std::move(run);
    return result;
  }

  /// The same with the sums of the cell's plan; see harness/yardstick.hpp.
  EndToEnd split_yardstick(const CellRun& cell, Phase phase, WeightStore& weights) {
    const DType dtype = coarser(cell.settings.storage, cell.settings.wire);
    const RunSettings settings{dtype, cell.settings.wire, cell.settings.reduction};
    return end_to_end(run_single(dtype, settings, phase, weights, make_split_sums(*cell.program)).taps,
                      logits_tap(*single_, phase), reference_, nullptr);
  }

  CellRun run_single(DType dtype, const RunSettings& settings, Phase phase, WeightStore& weights,
                     std::unique_ptr<Interposer> interposer) {
    if (dtype == weights.storage())
      return run_cell(*single_, settings, phase, weights, std::move(interposer));
    WeightStore own(model_, dtype);
    CellRun run = run_cell(*single_, settings, phase, own, std::move(interposer));
    inspected_.erase(single_);  // that was another precision's store
    return run;
  }

  static std::string mesh_words(const std::vector<Mesh>& meshes, std::string_view tp,
                                std::string_view mesh) {
    std::string words;
    const bool short_form = meshes.front().axes.size() == 1 && meshes.front().axes[0].name == "tp";
    if (short_form) {
      std::vector<int> sizes;
      for (const Mesh& m : meshes) sizes.push_back(m.ranks());
      return fmt::format(" {} {}", tp, fmt::join(sizes, ","));
    }
    for (const Mesh& m : meshes) words += fmt::format(" {} {}", mesh, to_string(m));
    return words;
  }

  std::string repro(const CellReport& cell) const {
    if (options_.repro.empty()) return "";
    std::string text = options_.repro + mesh_words({cell.mesh}, "--tp", "--mesh");
    // Generated ids depend on the meshes of the whole run; ids of a file and a single mesh's own don't.
    const std::vector<Mesh>& borders = options_.id_meshes.empty() ? options_.meshes
                                                                  : options_.id_meshes;
    if (options_.inputs.ids.empty() && borders != std::vector<Mesh>{cell.mesh}) {
      text += mesh_words(borders, "--ids-for", "--ids-for");
    }
    text += fmt::format(" --dtype {} --phase {}", name(cell.dtype), name(cell.phase));
    if (cell.wire != cell.dtype) text += fmt::format(" --wire {}", name(cell.wire));
    return text;
  }

  void dump(const CellRun& cell, Phase phase) {
    const std::size_t cells = options_.meshes.size() * options_.dtypes.size() * options_.phases.size();
    std::filesystem::path folder = options_.dump;
    if (cells > 1) {
      std::string mesh = to_string(cell.program->mesh);
      std::replace(mesh.begin(), mesh.end(), '=', '-');
      std::replace(mesh.begin(), mesh.end(), ',', '-');
      folder /= fmt::format("{}-{}-{}", mesh, name(cell.settings.storage), name(phase));
    }
    write_candidate(folder, *cell.program, cell.taps, sequences_);
  }

  /// By mesh, then precision, then phase: as they were asked for.
  void sort_cells() {
    const auto place = [this](const CellReport& cell) {
      const auto mesh = std::find(options_.meshes.begin(), options_.meshes.end(), cell.mesh);
      const auto dtype = std::find(options_.dtypes.begin(), options_.dtypes.end(), cell.dtype);
      const auto phase = std::find(options_.phases.begin(), options_.phases.end(), cell.phase);
      return std::tuple(mesh - options_.meshes.begin(), dtype - options_.dtypes.begin(),
                        phase - options_.phases.begin());
    };
    std::stable_sort(report_.cells.begin(), report_.cells.end(),
                     [&](const CellReport& a, const CellReport& b) { return place(a) < place(b); });
  }

  const Model& model_;
  const Plan& plan_;
  const VerifyOptions& options_;
  const VerifyParts& parts_;
  std::vector<std::unique_ptr<Program>> programs_;
  std::unique_ptr<Program> own_single_;
  const Program* single_ = nullptr;
  std::map<const Program*, std::unique_ptr<Program>> fused_;  // with VerifyOptions::fuse, of each of those
  std::vector<std::unique_ptr<Device>> devices_;  // one for all ranks, or one for each rank of the largest mesh
  std::vector<Device*> device_pointers_;
  Sequences sequences_;
  std::map<Phase, std::vector<Step>> steps_;
  ReferenceLogits reference_;
  std::optional<CellRun> single_run_;  // the plain yardstick, where it is a cell of its own
  std::map<const Program*, std::vector<WiringFault>> inspected_;  // of the current precision
  Launch launch_;      // of this process, where ranks may be processes
  std::string world_;  // kind
  VerifyReport report_;
};

}  // namespace

VerifyParts builtin_parts() {
  return {builtin_devices(), builtin_worlds(), builtin_ops(), builtin_local_ops()};
}

VerifyReport verify(const Model& model, const Plan& plan, const VerifyOptions& options,
                    const VerifyParts& parts) {
  return Verification(model, plan, options, parts).run();
}

}  // namespace shardcheck
