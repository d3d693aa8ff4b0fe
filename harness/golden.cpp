// SPDX-License-Identifier: Apache-2.0
#include "harness/golden.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>
#include <stdexcept>
#include <string_view>
#include <unordered_map>

#include "harness/report_json.hpp"
#include "model/error.hpp"
#include "model/modules.hpp"
#include "model/safetensors.hpp"

namespace shardcheck {
namespace {

std::string phase_name(int call) {
  return call == 0 ? "prefill" : fmt::format("decode{}", call - 1);
}

// A name's two parts. Nothing where the first part is neither "prefill" nor "decode<k>".
struct ParsedName {
  int call;
  std::string tap;
};

std::optional<ParsedName> parse_name(std::string_view name) {
  const std::size_t slash = name.find('/');
  if (slash == std::string_view::npos) return std::nullopt;
  const std::string_view phase = name.substr(0, slash);
  const std::string tap(strip_prefix(name.substr(slash + 1)));
  if (phase == "prefill") return ParsedName{0, tap};
  constexpr std::string_view kDecode = "decode";
  if (!phase.starts_with(kDecode)) return std::nullopt;
  const std::string_view digits = phase.substr(kDecode.size());
  int step = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), step);
  const bool canonical = !digits.empty() && digits.front() != '-' &&
                         (digits.size() == 1 || digits.front() != '0');
  if (error != std::errc{} || end != digits.data() + digits.size() || !canonical)
    return std::nullopt;
  if (step == std::numeric_limits<int>::max()) return std::nullopt;
  return ParsedName{step + 1, tap};
}

std::vector<std::int64_t> read_ids(const Config& config, const SafetensorsFile& file,
                                   const std::string& origin) {
  if (!file.contains("ids")) {
    throw InputError(
        fmt::format("{}: has no tensor 'ids'; a golden names its token ids, I64 [1, T]", origin));
  }
  const SafetensorsInfo& stated = file.info("ids");
  if (stated.dtype != DType::i64 || stated.shape.size() != 2 || stated.shape[0] != 1 ||
      stated.shape[1] == 0) {
    throw InputError(fmt::format("{}: ids is {} {}, needs I64 [1, T] with T of at least 1", origin,
                                 stated.dtype_name, to_string(stated.shape)));
  }
  const HostTensor ids = file.tensor("ids");
  const std::span<const std::int64_t> values = ids.as<std::int64_t>();
  for (std::size_t i = 0; i < values.size(); ++i) {
    if (values[i] < 0 || values[i] >= config.vocab_size) {
      throw InputError(fmt::format(
          "{}: ids[{}] is {}, outside the vocabulary of {} ({} entries); is this a golden of "
          "another model?",
          origin, i, values[i], config.name, config.vocab_size));
    }
  }
  return {values.begin(), values.end()};
}

[[noreturn]] void throw_unknown(const std::string& origin, const std::string& name,
                                const std::optional<ParsedName>& parsed,
                                const std::vector<std::string>& taps, const Config& config) {
  if (!parsed) {
    throw InputError(fmt::format(
        "{}: '{}' is neither prefill/<module path> nor decode<k>/<module path>; rename it, or "
        "pass --allow-unknown to leave it out",
        origin, name));
  }
  throw InputError(fmt::format(
      "{}: '{}' names no tap of {}, the nearest is '{}'; rename it, or pass --allow-unknown to "
      "leave it out",
      origin, name, config.name, nearest_name(parsed->tap, taps)));
}

void check_tensor(const SafetensorsInfo& stated, const std::string& name, const std::string& origin) {
  if (stated.shape.size() == 3 && stated.shape[0] == 1 && stated.dtype && is_float(*stated.dtype))
    return;
  throw InputError(
      fmt::format("{}: '{}' is {} {}, needs F64, F32, F16 or BF16 and [1, tokens, features]",
                  origin, name, stated.dtype_name, to_string(stated.shape)));
}

// max |a - b| / max |b|.
double relative_error(std::span<const double> a, std::span<const double> b) {
  double difference = 0.0, size = 0.0;
  for (std::size_t i = 0; i < b.size(); ++i) {
    const double d = std::abs(a[i] - b[i]);
    // std::max would drop a NaN; infinity - infinity is one too, so two equal infinities don't pass either.
    if (std::isnan(d)) return d;
    difference = std::max(difference, d);
    size = std::max(size, std::abs(b[i]));
  }
  if (difference == 0.0) return 0.0;
  return size == 0.0 ? std::numeric_limits<double>::infinity() : difference / size;
}

GoldenRow compare_tensor(const std::string& origin, const GoldenTensor& golden, double limit,
                         const reference::Matrix<double>& value) {
  const std::vector<std::int64_t>& shape = golden.value.shape();
  if (shape[1] != value.rows() || shape[2] != value.cols()) {
    const std::vector<std::int64_t> needed{1, value.rows(), value.cols()};
    throw InputError(fmt::format(
        "{}: '{}' has shape {}, but these ids give {} there; the prefill covers all ids but "
        "one per decode step",
        origin, golden.name, to_string(shape), to_string(needed)));
  }
  const DType stored = golden.value.dtype();
  const double storing = stored == DType::f64 ? 0.0 : unit_roundoff(stored);
  return {phase_name(golden.call), golden.tap,
          relative_error(value.values(), golden.value.to_f64()), limit + storing};
}

// Larger than any number where it isn't one, so that NaN is the worst.
double excess(const GoldenRow& row) {
  const double ratio = row.rel / row.limit;
  return std::isnan(ratio) ? std::numeric_limits<double>::infinity() : ratio;
}

bool worse(const GoldenRow& a, const GoldenRow& b) {
  if (std::isnan(a.rel) != std::isnan(b.rel)) return std::isnan(a.rel);
  return excess(a) > excess(b);
}

}  // namespace

Golden read_golden(const Config& config, const std::filesystem::path& path,
                   const GoldenOptions& options) {
  const SafetensorsFile file = SafetensorsFile::open(path);
  Golden golden;
  golden.file = path.string();
  golden.ids = read_ids(config, file, golden.file);

  const std::vector<std::string> taps = reference::tap_names(config);
  std::unordered_map<std::string, std::size_t> order;
  for (std::size_t i = 0; i < taps.size(); ++i) order.emplace(taps[i], i);

  for (const std::string& name : file.names()) {
    if (name == "ids") continue;
    const std::optional<ParsedName> parsed = parse_name(name);
    if (parsed) golden.decode_steps = std::max(golden.decode_steps, parsed->call);
    if (!parsed || !order.contains(parsed->tap)) {
      if (!options.allow_unknown) throw_unknown(golden.file, name, parsed, taps, config);
      ++golden.unknown;
      continue;
    }
    check_tensor(file.info(name), name, golden.file);
    golden.tensors.push_back({name, parsed->call, parsed->tap, file.tensor(name)});
  }
  if (golden.tensors.empty()) {
    throw InputError(
        fmt::format("{}: holds no tensor to compare; name them prefill/<module path> and "
                    "decode<k>/<module path>",
                    golden.file));
  }
  if (static_cast<std::size_t>(golden.decode_steps) >= golden.ids.size()) {
    throw InputError(fmt::format(
        "{}: has tensors of decode{}, which takes {} ids after a prefill of at least one, but "
        "ids holds {}",
        golden.file, golden.decode_steps - 1, golden.decode_steps, golden.ids.size()));
  }
  std::stable_sort(golden.tensors.begin(), golden.tensors.end(),
                   [&](const GoldenTensor& a, const GoldenTensor& b) {
                     return std::pair(a.call, order.at(a.tap)) < std::pair(b.call, order.at(b.tap));
                   });
  return golden;
}

bool GoldenReport::passed() const {
  return !rows.empty() &&
         std::all_of(rows.begin(), rows.end(), [](const GoldenRow& row) { return row.passed(); });
}

double golden_limit(const Config& config) {
  constexpr double kSumsPerLayer = 8.0;
  const double bound = static_cast<double>(config.num_layers) * kSumsPerLayer *
                       std::sqrt(static_cast<double>(config.hidden_size)) * unit_roundoff(DType::f64);
  return std::max(1e-13, std::pow(10.0, std::ceil(std::log10(bound))));
}

GoldenReport compare_golden(const Golden& golden, double limit, const GoldenForward& forward) {
  GoldenReport report;
  report.unknown = golden.unknown;
  report.limit = limit;
  const std::span<const std::int64_t> ids = golden.ids;
  const std::size_t prompt = ids.size() - static_cast<std::size_t>(golden.decode_steps);
  auto next = golden.tensors.begin();
  for (int call = 0; call <= golden.decode_steps; ++call) {
    forward(
        call == 0 ? ids.first(prompt) : ids.subspan(prompt + static_cast<std::size_t>(call) - 1, 1),
        [&](std::string_view name, const reference::Matrix<double>& value) {
          // Two names may mean one tap: with and without the base model's prefix.
          for (; next != golden.tensors.end() && next->call == call && next->tap == name; ++next) {
            report.rows.push_back(compare_tensor(golden.file, *next, limit, value));
          }
        });
    if (next != golden.tensors.end() && next->call == call) {
      throw std::logic_error(fmt::format("the forward pass didn't report {} in its place", next->tap));
    }
  }
  report.compared = static_cast<std::int64_t>(report.rows.size());
  report.worst = static_cast<std::size_t>(
      std::min_element(report.rows.begin(), report.rows.end(), worse) - report.rows.begin());
  return report;
}

GoldenReport compare_golden(const Model& model, const std::filesystem::path& file,
                            const GoldenOptions& options) {
  const Golden golden = read_golden(model.config(), file, options);
  reference::Transformer<double> transformer(model);
  return compare_golden(golden, golden_limit(model.config()),
                        [&](std::span<const std::int64_t> ids, const reference::Tap<double>& tap) {
                          transformer.forward(ids, tap);
                        });
}

std::string golden_json(const GoldenReport& report) {
  const GoldenRow& worst = report.rows.at(report.worst);
  const nlohmann::ordered_json json = {
      {"schema", "shardcheck.compare/1"},
      {"compared", report.compared},
      {"unknown", report.unknown},
      {"limit", report.limit},
      {"worst", {{"phase", worst.phase}, {"tap", worst.tap}, {"rel", json_number(worst.rel)}}},
      {"verdict", report.passed() ? "passed" : "failed"},
  };
  return json.dump(2) + "\n";
}

std::string golden_table(const GoldenReport& report) {
  std::vector<std::string> taps;  // in order of first appearance: the prefill's, then what only a decode step has
  std::unordered_map<std::string, std::size_t> worst;
  std::size_t width = 3;
  for (std::size_t i = 0; i < report.rows.size(); ++i) {
    const GoldenRow& row = report.rows[i];
    const auto [known, added] = worst.emplace(row.tap, i);
    if (added) taps.push_back(row.tap);
    if (worse(row, report.rows[known->second])) known->second = i;
    width = std::max(width, row.tap.size());
  }
  std::string text = fmt::format("{:<{}}  {:>9}  {:>9}  {:>9}\n", "tap", width, "phase", "rel",
                                 "limit");
  for (const std::string& tap : taps) {
    const GoldenRow& row = report.rows[worst.at(tap)];
    text += fmt::format("{:<{}}  {:>9}  {:>9.2e}  {:>9.2e}{}\n", row.tap, width, row.phase, row.rel,
                        row.limit, row.passed() ? "" : "  FAILED");
  }
  const GoldenRow& row = report.rows.at(report.worst);
  text += fmt::format("{}: {} tensors compared, {} unknown; worst {:.2e} at {}/{} (limit {:.0e})\n",
                      report.passed() ? "passed" : "failed", report.compared, report.unknown,
                      row.rel, row.phase, row.tap, row.limit);
  return text;
}

}  // namespace shardcheck
