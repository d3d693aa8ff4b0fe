// SPDX-License-Identifier: Apache-2.0
#include "harness/faults/kill_table.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <exception>
#include <memory>
#include <mutex>
#include <set>
#include <thread>

#include "harness/faults/legal.hpp"
#include "model/error.hpp"

namespace shardcheck {
namespace {

/// Pieces of work in a fixed order, shared by a few threads.
void share(int threads, std::size_t count, const std::function<void(std::size_t)>& work) {
  std::atomic<std::size_t> next{0};
  std::mutex mutex;
  std::exception_ptr error;
  const auto body = [&] {
    for (std::size_t i = next++; i < count; i = next++) {
      try {
        work(i);
      } catch (...) {
        const std::lock_guard lock(mutex);
        if (!error) error = std::current_exception();
        next = count;
      }
    }
  };
  std::vector<std::thread> others;
  for (int i = 1; i < threads; ++i) others.emplace_back(body);
  body();
  for (std::thread& thread : others) thread.join();
  if (error) std::rethrow_exception(error);
}

class Table {
 public:
  Table(const FaultOptions& options, const VerifyParts& parts) : options_(options), parts_(parts) {}

  FaultReport run() {
    report_.plan = options_.plan;
    report_.models = options_.models;
    choose_faults();
    // All of what is typed is read before anything runs.
    for (const std::string& model : options_.models)
      models_.push_back(std::make_unique<Model>(load_model(model)));
    plans_.emplace("", load_plan(options_.plan));
    for (const Fault& fault : report_.catalogue) {
      if (!fault.plan.empty() && plans_.find(fault.plan) == plans_.end())
        plans_.emplace(fault.plan, load_plan(fault.plan));
    }
    for (const auto& model : models_) run_model(*model);
    return std::move(report_);
  }

 private:
  struct Trial {
    const FaultBench* bench;
    const Fault* fault;
    std::size_t mesh;
    Spot spot;
  };

  void choose_faults() {
    std::vector<std::string> names;
    for (Fault& fault : fault_catalogue()) {
      names.push_back(fault.name);
      const bool wanted = options_.faults.empty() ||
                          std::find(options_.faults.begin(), options_.faults.end(), fault.name) !=
                              options_.faults.end();
      if (wanted && (fault.plan.empty() || !options_.only_plan))
        report_.catalogue.push_back(std::move(fault));
    }
    for (const std::string& wanted : options_.faults) {
      if (std::find(names.begin(), names.end(), wanted) != names.end()) continue;
      throw InputError(fmt::format(
          "--fault: no fault is called \"{}\"; did you mean \"{}\"? (--list shows them all)",
          wanted, nearest_name(wanted, names)));
    }
  }

  /// Meshes of a plan that this model can have.
  std::vector<Mesh> meshes(const Model& model, const Plan& plan) {
    std::vector<Mesh> fit;
    for (const int size : options_.tp) {
      Mesh mesh;
      for (const std::string& axis : plan.mesh) mesh.axes.push_back({axis, 1});
      mesh.axes.back().size = size;
      try {
        resolve(plan, model, mesh);
        fit.push_back(std::move(mesh));
      } catch (const InputError& error) {
        refused_ = error.what();
        report_.notes.push_back(
            fmt::format("{} at {}: {}", model.config().name, to_string(mesh), error.what()));
      }
    }
    return fit;
  }

  void run_model(const Model& model) {
    std::map<std::string, std::unique_ptr<FaultBench>> benches;
    for (const auto& [key, plan] : plans_) {
      const bool needed = std::any_of(report_.catalogue.begin(), report_.catalogue.end(),
                                      [&](const Fault& fault) { return fault.plan == key; });
      const std::vector<Mesh> fit = meshes(model, plan);
      if (fit.empty() && key.empty()) throw InputError(refused_);
      if (fit.empty() || !needed) continue;
      progress(fmt::format("{} under {}", model.config().name, plan.name));
      FaultBench& bench = *benches
                               .emplace(key, std::make_unique<FaultBench>(model, plan, fit, parts_))
                               .first->second;
      report_.legal_runs += bench.correct_runs();
      report_.alarms.insert(report_.alarms.end(), bench.alarms().begin(), bench.alarms().end());
      if (!options_.legal) continue;
      const LegalRuns legal = legal_runs(model, plan, fit, parts_);
      report_.legal_runs += legal.runs;
      report_.alarms.insert(report_.alarms.end(), legal.alarms.begin(), legal.alarms.end());
    }
    std::vector<Trial> trials;
    for (std::size_t f = 0; f < report_.catalogue.size(); ++f) {
      const auto bench = benches.find(report_.catalogue[f].plan);
      if (bench == benches.end()) continue;
      for (std::size_t mesh = 0; mesh < bench->second->meshes(); ++mesh)
        sample(*bench->second, report_.catalogue[f], f, mesh, trials);
    }
    std::vector<std::vector<FaultRow>> rows(trials.size());
    std::atomic<std::size_t> done{0};
    share(options_.threads, trials.size(), [&](std::size_t i) {
      const Trial& trial = trials[i];
      rows[i] = trial.bench->try_fault(*trial.fault, trial.spot, trial.mesh);
      const std::lock_guard lock(mutex_);
      if (options_.progress) {
        options_.progress(fmt::format("{}: {}", model.config().name, trial.fault->name),
                          static_cast<double>(++done) / static_cast<double>(trials.size()));
      }
    });
    for (std::vector<FaultRow>& some : rows) {
      for (FaultRow& row : some) report_.rows.push_back(std::move(row));
    }
  }

  /// A few spots of a fault on one mesh: first, middle and last place and every rank take turns.
  void sample(const FaultBench& bench, const Fault& fault, std::size_t number, std::size_t mesh,
              std::vector<Trial>& trials) {
    const Program& program = bench.program(mesh);
    const std::vector<std::string> places = fault.places(program, fault.phase);
    if (places.empty()) return;
    const std::vector<std::size_t> chosen{0, places.size() / 2, places.size() - 1};
    const int ranks = program.mesh.ranks();
    int& turn = turns_[number];
    std::set<std::pair<std::string, int>> taken;
    int found = 0;
    for (int attempt = 0; found < options_.spots && attempt < 3 * ranks + 3; ++attempt, ++turn) {
      const int rank = fault.any_rank ? turn % ranks : 0;
      const Spot spot{places[chosen[static_cast<std::size_t>(turn + turn / ranks) % 3]], rank,
                      fault.phase};
      if (!taken.insert({spot.place, rank}).second || !fault.plant(program, spot)) continue;
      trials.push_back({&bench, &fault, mesh, spot});
      ++found;
    }
  }

  void progress(const std::string& what) {
    if (options_.progress) options_.progress(what, -1.0);
  }

  const FaultOptions& options_;
  const VerifyParts& parts_;
  std::vector<std::unique_ptr<Model>> models_;
  std::map<std::string, Plan> plans_;  // by Fault::plan
  std::map<std::size_t, int> turns_;   // by fault
  std::string refused_;
  std::mutex mutex_;
  FaultReport report_;
};

}  // namespace

void GateScore::add(const FaultRow& row) {
  if (row.status == FaultStatus::missed) ++missed;
  if (row.status == FaultStatus::below_rounding) ++below_rounding;
  if (!row.caught()) return;
  ++caught;
  if (row.first_is_right()) ++first_right;
  if (row.expected_cause.empty()) return;
  ++causes;
  if (row.cause_is_right()) ++cause_right;
}

std::map<FaultGate, GateScore> FaultReport::scores() const {
  std::map<FaultGate, GateScore> all;
  for (const FaultGate gate : kFaultGates) all[gate] = {};
  for (const FaultRow& row : rows) all[row.gate].add(row);
  return all;
}

std::map<FaultGate, GateScore> FaultReport::scores(const std::string& fault) const {
  std::map<FaultGate, GateScore> all;
  for (const FaultRow& row : rows) {
    if (row.fault == fault) all[row.gate].add(row);
  }
  return all;
}

std::int64_t FaultReport::spots(const std::string& fault) const {
  // Every trial has one row for fp16, and its job is that of all faults.
  return std::count_if(rows.begin(), rows.end(), [&](const FaultRow& row) {
    return row.fault == fault && row.gate == FaultGate::fp16 && row.status != FaultStatus::no_effect;
  });
}

bool FaultReport::passed() const {
  if (!alarms.empty()) return false;
  std::int64_t causes = 0, right = 0;
  for (const auto& [gate, score] : scores()) {
    if (score.missed > 0 || score.first_right < score.caught) return false;
    if (gate == FaultGate::lint) continue;
    causes += score.causes;
    right += score.cause_right;
  }
  return static_cast<double>(right) >= kCausesRight * static_cast<double>(causes);
}

FaultReport run_faults(const FaultOptions& options, const VerifyParts& parts) {
  return Table(options, parts).run();
}

}  // namespace shardcheck
