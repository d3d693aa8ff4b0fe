// SPDX-License-Identifier: Apache-2.0
// Styles that state how their input must be cut, against the styles of the modules that make it.
#include <fmt/format.h>

#include <algorithm>

#include "harness/import/assemble.hpp"

namespace shardcheck {
namespace {

using Cut = ImportedCut;
using Layout = ImportedLayout;

class InputCheck {
 public:
  InputCheck(const std::vector<PlacedRule>& placed, const ModuleTable& modules,
             const JsonPlaces& places, ImportSource source)
      : placed_(placed), modules_(modules), places_(places), source_(source) {}

  void run() const {
    for (const PlacedRule& consumer : placed_) {
      if (consumer.at.module->sample.kind != ModuleKind::linear) continue;
      const Layout given = consumer.rule->input_given;
      if (consumer.rule->cut == Cut::rowwise && (given == Layout::features || given == Layout::any)) {
        needs_cut_input(consumer);
      } else if (consumer.rule->cut == Cut::colwise &&
                 (given == Layout::replicated || given == Layout::any)) {
        needs_whole_input(consumer);
      }
    }
  }

 private:
  const PlacedRule* rule_of(const KnownModule* module) const {
    const auto found = std::find_if(placed_.begin(), placed_.end(),
                                    [&](const PlacedRule& p) { return p.at.module == module; });
    return found == placed_.end() ? nullptr : &*found;
  }
  static bool leaves_cut(const PlacedRule* rule) {
    return rule != nullptr && rule->rule->cut == Cut::colwise &&
           rule->rule->output_left == Layout::features;
  }
  static std::string last_name(const std::string& path) { return path.substr(path.rfind('.') + 1); }

  void needs_whole_input(const PlacedRule& consumer) const {
    const KnownModule& module = *consumer.at.module;
    std::vector<std::string> cut;
    for (const KnownModule* producer : modules_.producers(module)) {
      if (leaves_cut(rule_of(producer))) cut.push_back(last_name(producer->pattern));
    }
    if (cut.empty()) return;
    const bool attention = module.sample.role == ModuleRole::o;
    const std::string name = last_name(module.pattern);
    places_.fail_at(consumer.rule->style_place,
                    fmt::format("\"{}\": \"{}\" cuts {} by its output rows, so every rank needs the whole "
                                "input; but {} cut by output rows already, so a rank has only {}. Write "
                                "\"{}\": it cuts {} by the input columns of the rank's own {}, and one "
                                "all_reduce adds the ranks' shares",
                                consumer.at.pattern, consumer.rule->style, name, and_are(cut),
                                attention ? "the attention output of its own q heads"
                                          : "its own part of the features between them",
                                row_parallel(source_), name, attention ? "q heads" : "features"));
  }

  /// "q_proj, k_proj and v_proj are".
  static std::string and_are(const std::vector<std::string>& names) {
    if (names.size() == 1) return names[0] + " is";
    const std::vector<std::string> before(names.begin(), names.end() - 1);
    return fmt::format("{} and {} are", fmt::join(before, ", "), names.back());
  }

  void needs_cut_input(const PlacedRule& consumer) const {
    const KnownModule& module = *consumer.at.module;
    std::vector<const KnownModule*> producers = modules_.producers(module);
    // Which of them a family has is only known with a model; without one those that have a rule speak for all.
    if (!modules_.of_one_model())
      std::erase_if(producers,
                    [&](const KnownModule* producer) { return rule_of(producer) == nullptr; });
    std::vector<std::string> whole;
    for (const KnownModule* producer : producers) {
      if (!leaves_cut(rule_of(producer))) whole.push_back(last_name(producer->pattern));
    }
    if (!producers.empty() && whole.empty()) return;
    if (consumer.rule->head_splits_input && module.sample.role == ModuleRole::lm_head) return;
    const std::string word(row_parallel_of_whole(source_));
    const std::string otherwise = whole.empty() ? "cut its output rows instead" : "";
    const std::string itself = word.empty()
                                   ? otherwise
                                   : fmt::format("write \"{}\", which cuts the input itself", word);
    const std::string before = whole.empty()
                                   ? ""
                                   : fmt::format("make {} column-parallel without a gather",
                                                 fmt::join(whole, " and "));
    places_.fail_at(
        consumer.rule->style_place,
        fmt::format(
            "\"{}\": \"{}\" takes an input that is cut along its features, but {} whole on every "
            "rank; {}{}{}",
            consumer.at.pattern, consumer.rule->style,
            whole.empty() ? "what it reads is"
                          : fmt::format("the output of {} is", fmt::join(whole, " and ")),
            before, before.empty() || itself.empty() ? "" : ", or ", itself));
  }

  const std::vector<PlacedRule>& placed_;
  const ModuleTable& modules_;
  const JsonPlaces& places_;
  ImportSource source_;
};

}  // namespace

void check_inputs(const std::vector<PlacedRule>& placed, const ModuleTable& modules,
                  const JsonPlaces& places, ImportSource source) {
  InputCheck(placed, modules, places, source).run();
}

}  // namespace shardcheck
